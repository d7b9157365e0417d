"""The process that runs the program: as a script, or as a library whose functions the tests call.

From the first line of the program on, nothing in this process can be trusted, this file included; what it holds by then
is the program itself, and a socket to its tests (which are elsewhere) or its input and output.
"""

import ast
import atexit
import builtins
import json
import operator
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NoReturn

from freerun.rewards.sandbox.inside import codec

ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1"}
CANNOT_START = 127


def run_script(job: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> NoReturn:
    """As `python main.py` does, or by another command on the program in a file."""
    os.environ.clear()
    os.environ.update(ENVIRONMENT)
    if job["command"]:
        _execute(job)
    try:
        code = _choose(job)
    except _Unreadable as error:
        say({"unreadable": str(error)})
        os._exit(1)
    _close_from(3)
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        stream = open(number, mode, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os._exit(_as_main(code))


def _execute(job: dict[str, Any]) -> NoReturn:
    _close_from(3)
    with open(job["file"], "w", encoding="utf-8", errors="replace") as file:
        file.write(job["sources"][0])
    try:
        os.execvpe(job["command"][0], job["command"], ENVIRONMENT)
    except OSError as error:
        os.write(2, f"{job['command'][0]}: {error.strerror}\n".encode())
        os._exit(CANNOT_START)


def _as_main(code: Any) -> int:
    """Run it, its exit handlers and its threads, and return its exit code, as the interpreter would."""
    main = ModuleType("__main__")
    main.__file__ = code.co_filename
    sys.modules["__main__"] = main
    sys.argv = [code.co_filename]
    sys.path.insert(0, "/tmp")
    status = 0
    try:
        try:
            exec(code, vars(main))
        finally:
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
    except SystemExit as leaving:
        status = _exit_code(leaving.code)
    except BaseException as error:
        traceback.print_exception(type(error), error, error.__traceback__ and error.__traceback__.tb_next)
        status = 1
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        status = status or 120
    return status


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def serve(job: dict[str, Any], channel: socket.socket) -> NoReturn:
    """Load the program, then do what its tests ask, until they hang up."""
    os.environ.clear()
    os.environ.update(ENVIRONMENT)
    sys.path.insert(0, "/tmp")
    module = ModuleType("solution")
    sys.modules["solution"] = module
    try:
        code = _choose(job)
        exec(job["header"], vars(module))  # imports and helpers that the prompt gives
        exec(code, vars(module))
    except _Unreadable as error:
        codec.send(channel, ["unreadable", str(error)])
        os._exit(1)
    except BaseException as error:
        codec.send(channel, ["failed", "".join(traceback.format_exception_only(error)).strip()[-1000:]])
        os._exit(1)
    codec.send(channel, ["loaded"])
    desk = Desk(module, channel)
    while True:
        try:
            desk.answer()
        except EOFError:
            os._exit(0)


class Desk:
    """Answers the tests' questions: the name, attribute, item or result asked for, or what was raised instead."""

    def __init__(self, module: ModuleType, channel: socket.socket) -> None:
        self._module = module
        self._channel = channel
        self._held: list[Any] = []
        self._places: dict[int, int] = {}
        self._doing: dict[str, Callable[..., Any]] = {
            **{"name": self._name, "attribute": getattr, "set": setattr, "item": operator.getitem, "len": len},
            **{"bool": bool, "iter": iter, "next": next, "str": str, "repr": repr, "same": operator.eq},
        }

    def answer(self) -> None:
        what, packed, named = codec.receive(self._channel)
        try:
            operands = codec.unpack(packed, self._fetch)
            if what == "call":
                reply = self._call(operands, codec.unpack(named, self._fetch), packed)
            else:
                reply = ["value", codec.pack(self._doing[what](*operands), self._hold)]
        except BaseException as error:  # SystemExit too: leaving is no answer, and the tests are told so
            reply = ["raised", _nearest(error), codec.pack(_arguments(error), self._hold)]
        codec.send(self._channel, reply)

    def _call(self, operands: tuple[Any, ...], named: dict[str, Any], packed: Any) -> list[Any]:
        function, *args = operands
        result = function(*args, **named)
        if result is None and (after := codec.pack(tuple(operands), self._hold)) != packed:
            return ["changed", after]
        return ["value", codec.pack(result, self._hold)]

    def _name(self, name: str) -> Any:
        """A name of the program's; or a method of its class Solution, as one site has them."""
        if name in vars(self._module):
            return vars(self._module)[name]
        if hasattr(solution := vars(self._module).get("Solution"), name):
            return getattr(solution(), name)  # type: ignore[misc]
        raise NameError(f"name {name!r} is not defined")

    def _hold(self, value: Any) -> dict[str, int]:
        place = self._places.setdefault(id(value), len(self._held))
        if place == len(self._held):
            self._held.append(value)  # kept alive, so that its id stays its own
        return {"held": place}

    def _fetch(self, kind: str, index: int) -> Any:
        return self._held[index] if kind == "held" else self._caller(index)

    def _caller(self, index: int) -> Callable[..., Any]:
        """A function of the tests', given to the program to call."""

        def call_back(*args: Any, **named: Any) -> Any:
            codec.send(self._channel, ["call back", index, codec.pack(args, self._hold), codec.pack(named, self._hold)])
            match codec.receive(self._channel):
                case ["value", value]:
                    return codec.unpack(value, self._fetch)
                case ["raised", name, arguments]:
                    raise getattr(builtins, name, RuntimeError)(*codec.unpack(arguments, self._fetch))

        return call_back


def _nearest(error: BaseException) -> str:
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")


def _arguments(error: BaseException) -> tuple[Any, ...]:
    plain = all(isinstance(arg, str | int | float | None) for arg in error.args)
    return error.args if plain else (str(error),)


class _Unreadable(Exception):
    """None of the ways to read the answer is Python."""


def _choose(job: dict[str, Any]) -> Any:
    """Of the ways to read an answer the first that compiles and defines what is asked for, else the first of them."""
    compiled, first = None, ""
    for source in job["sources"]:
        try:
            tree = ast.parse(source, "main.py")
            code = compile(tree, "main.py", "exec")
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
            first = first or f"{type(error).__name__}: {error}"
            continue
        compiled = compiled or code
        if job["entry"] is None or job["entry"] in _bound(tree):
            compiled = code
            break
    if compiled is None:
        raise _Unreadable(first)
    return compiled


def _bound(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Import() | ast.ImportFrom():
                yield from ((alias.asname or alias.name) for alias in node.names)
            case ast.Assign() | ast.AnnAssign():
                names = (name for name in ast.walk(node) if isinstance(name, ast.Name))
                yield from (name.id for name in names if isinstance(name.ctx, ast.Store))


def _close_from(number: int) -> None:
    os.closerange(number, 1 << 16)


def read_job(descriptor: int) -> dict[str, Any]:
    with open(descriptor, "rb") as file:
        file.seek(0)
        job: dict[str, Any] = json.loads(file.read())
    return job
