"""The process that loads a program as the module `solution` and lets its tests call it.

From the program's first line on, nothing in this process can be trusted, including this file. By then it holds only the
program itself and a socket to the test runner, which is another process.
"""

import builtins
import io
import os
import socket
import sys
import traceback
from importlib import import_module
from types import CodeType, FunctionType, ModuleType
from typing import Any, NoReturn

from freerun.sandbox.inside import codec
from freerun.sandbox.inside.link import Link
from freerun.sandbox.inside.source import Unreadable, choose, prepare_interpreter, set_variable
from freerun.sandbox.inside.subclassing import create_subclass, super_attribute


def serve(program: dict[str, Any], channel: socket.socket) -> NoReturn:
    """Load the program, then answer requests from its tests until they close the connection."""
    prepare_interpreter()
    module = ModuleType("solution")
    sys.modules["solution"] = module
    try:
        code = choose(program)
        exec(program["header"], vars(module))  # imports and helpers from the prompt
        exec(code, vars(module))
    except Unreadable as error:
        codec.send(channel, ["unreadable", str(error)])
        os._exit(1)
    except BaseException as error:
        codec.send(channel, ["failed", "".join(traceback.format_exception_only(error)).strip()[-1000:]])
        os._exit(1)
    codec.send(channel, ["loaded", [name for name in _used_names(code) if name not in vars(module)]])
    link = TestsLink(module, channel)
    while True:
        try:
            link.answer(codec.receive(channel))
        except EOFError:
            os._exit(0)


class TestsLink(Link):
    """The program's end of the link: looks up names for the tests and operates on objects that they got from here."""

    def __init__(self, module: ModuleType, channel: socket.socket) -> None:
        super().__init__(channel)
        self._module = module
        self._captured: tuple[CapturedStream, CapturedStream] | None = None
        self._operations |= {
            **{"name": self._name, "has": self._has, "define": self._define, "candidate": self._candidate},
            **{"assign": self._assign, "unassign": self._unassign, "subclass": create_subclass},
            **{"super": super_attribute, "capture": self._capture, "patch": _patch, "unpatch": _unpatch},
            **{"environ": set_variable, "chdir": os.chdir},
        }
        builtins.input = lambda prompt="": self.ask("input", str(prompt))  # tests may replace their own

    def _name(self, name: str) -> Any:
        """Look up a name of the program, a method of its class `Solution`, or an expression (`Solution().method`)."""
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
        """Add a class or a module of the tests that the program uses and does not define."""
        vars(self._module).setdefault(name, value)

    def _candidate(self) -> Any:
        """The function to test if the task names none: the last function, else the last method of the last class."""
        own = [value for value in vars(self._module).values() if getattr(value, "__module__", "") == "solution"]
        functions = [value for value in own if isinstance(value, FunctionType)]
        if functions:
            return functions[-1]
        classes = [value for value in own if isinstance(value, type)]
        methods = [name for name in vars(classes[-1]) if not name.startswith("_")] if classes else []
        if not methods:
            raise NameError("there is no function to test")
        return getattr(classes[-1](), methods[-1])

    def _assign(self, name: str, value: Any) -> None:
        vars(self._module)[name] = value

    def _unassign(self, name: str) -> None:
        if not self._has(name):
            raise AttributeError(name)
        del vars(self._module)[name]

    # What the program prints

    def _capture(self, on: bool) -> None:
        """Send what the program prints to the tests from now on, or stop doing so."""
        self._captured = (CapturedStream(), CapturedStream()) if on else None
        sys.stdout, sys.stderr = self._captured or (sys.__stdout__, sys.__stderr__)

    def _send(self, message: list[Any]) -> None:
        if self._captured is not None:
            texts = [stream.take() for stream in self._captured]
            if any(texts):
                super()._send(["output", *texts])
        super()._send(message)


class CapturedStream(io.TextIOWrapper):
    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", errors="surrogateescape", write_through=True)

    def take(self) -> str:
        """What was printed since the last call."""
        if self.closed:
            return ""
        self.flush()
        buffer: Any = self.buffer
        data: bytes = buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
        return data.decode(errors="replace")


def _patch(module: str, name: str, value: Any) -> None:
    setattr(import_module(module), name, value)


def _unpatch(module: str, name: str) -> None:
    delattr(import_module(module), name)


def _used_names(code: CodeType) -> set[str]:
    """All names in the code, including attributes."""
    inner = (_used_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)
