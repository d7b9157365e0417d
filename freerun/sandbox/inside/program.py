"""The process that runs the program: as a script, or as a library whose functions the tests call.

From the first line of the program on, nothing in this process can be trusted, this file included; what it holds by then
is the program itself, and a socket to its tests (which are elsewhere) or its input and output.
"""

import ast
import atexit
import builtins
import gc
import io
import json
import os
import re
import socket
import sys
import threading
import traceback
from _sitebuiltins import Quitter
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import CodeType, FunctionType, ModuleType
from typing import Any, NoReturn

from freerun.sandbox.inside import codec
from freerun.sandbox.inside.link import Link

ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1"}
CANNOT_START = 127
_NOT_A_NAME = re.compile(r"\W")
"""What ends the name that `Solution().method` begins with."""


def run_script(job: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> NoReturn:
    """As `python main.py` does, or by another command on the program in a file."""
    _prepare()
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


def _prepare() -> None:
    """What a program finds as it would under `python main.py`."""
    os.environ.clear()
    os.environ.update(ENVIRONMENT)
    sys.path.insert(0, "/tmp")
    for name in ("exit", "quit"):
        setattr(builtins, name, Quitter(name, "Ctrl-D (i.e. EOF)"))


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
    status = 0
    try:
        try:
            exec(code, vars(main))
        finally:
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
    except SystemExit as leaving:
        status = _exit_code(leaving.code)
    except BaseException as error:
        traceback.print_exception(type(error), error, error.__traceback__ and error.__traceback__.tb_next)
        status = 1
    return _let_go(main) or status


def _let_go(main: ModuleType) -> int:
    """Drop all that the module holds, as the interpreter does at its end: files left open are written out."""
    held = gc.get_objects()
    for kind in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):  # left to itself, in a cycle, it may be lost
        for file in [file for file in held if type(file) is kind]:
            with suppress(OSError, ValueError):
                file.flush()
    del held
    names = vars(main)
    for private in (True, False):
        for name in [name for name in names if name != "__builtins__" and private == _is_private(name)]:
            names[name] = None
    gc.collect()
    status = 0
    for stream in (sys.stdout, sys.__stdout__, sys.stderr, sys.__stderr__):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except (OSError, ValueError):
            status = 120
        except Exception:  # something that the program has put in its place
            traceback.print_exc()
    return status


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def serve(job: dict[str, Any], channel: socket.socket) -> NoReturn:
    """Load the program, then do what its tests ask, until they hang up."""
    _prepare()
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
    codec.send(channel, ["loaded", [name for name in _used(code) if name not in vars(module)]])
    desk = Desk(module, channel)
    while True:
        try:
            desk.answer(codec.receive(channel))
        except EOFError:
            os._exit(0)


class Desk(Link):
    """Does what the tests ask: of the names of the program, and of whatever they have got from it."""

    def __init__(self, module: ModuleType, channel: socket.socket) -> None:
        super().__init__(channel)
        self._module = module
        self._doing |= {"name": self._name, "has": self._has, "define": self._define, "candidate": self._candidate}

    def _name(self, name: str) -> Any:
        """A name of the program's; or a method of its class Solution, as one site has them; or `Solution().method`."""
        own = vars(self._module)
        if name in own:
            return own[name]
        if not name.isidentifier():
            return eval(name, own)
        if hasattr(solution := own.get("Solution"), name):
            return getattr(solution(), name)  # type: ignore[misc]
        raise NameError(f"name {name!r} is not defined")

    def _has(self, name: str) -> bool:
        return name in vars(self._module)

    def _define(self, name: str, value: Any) -> None:
        """A class of the tests', or a module they import, which the program uses and does not define."""
        vars(self._module).setdefault(name, value)

    def _candidate(self) -> Any:
        """What there is to test where nobody says: the last function, else the last method of the last class."""
        own = [value for value in vars(self._module).values() if getattr(value, "__module__", "") == "solution"]
        functions = [value for value in own if isinstance(value, FunctionType)]
        if functions:
            return functions[-1]
        classes = [value for value in own if isinstance(value, type)]
        methods = [name for name in vars(classes[-1]) if not name.startswith("_")] if classes else []
        if not methods:
            raise NameError("there is no function to test")
        return getattr(classes[-1](), methods[-1])


def _used(code: CodeType) -> set[str]:
    """All names in it, of attributes too."""
    inner = (_used(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


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
        if job["entry"] is None or _NOT_A_NAME.split(job["entry"])[0] in _bound(tree):
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
