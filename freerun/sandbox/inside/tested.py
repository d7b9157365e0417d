"""The program as its tests see it: names, and what is behind them, in another process that may lie.

Whatever it says, it can only say as a value: expected values stay on this side.
"""

import builtins
import socket
import sys
import threading
from collections.abc import Callable
from types import (
    AsyncGeneratorType,
    BuiltinFunctionType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
    TracebackType,
)
from typing import Any, NoReturn

from freerun.sandbox.inside import codec
from freerun.sandbox.inside.link import Link
from freerun.sandbox.inside.naming import global_name
from freerun.sandbox.inside.proxies import is_mirrored

_MACHINERY = (
    *(FunctionType, BuiltinFunctionType, MethodType, ModuleType, GeneratorType, CoroutineType, AsyncGeneratorType),
    *(FrameType, CodeType, TracebackType),
)
"""Objects of the tests whose attributes lead to everything else."""


class Program(Link):
    guarded = True

    def __init__(self, channel: socket.socket, on_break: Callable[[str], NoReturn]) -> None:
        super().__init__(channel)
        self.assertions = 0
        self.names: Names | None = None
        self.missing: set[str] = set()
        """Names that the program uses and does not define."""
        self._on_break = on_break
        self._unsettled: list[Callable[[], None]] = []
        self._copies: dict[int, tuple[Any, Any]] = {}

    def hear(self) -> list[Any]:
        """The next message. A program that is gone, or talks nonsense, ends the tests at once: no test can catch it."""
        try:
            message = codec.receive(self._channel)
            if not isinstance(message, list) or not message or not isinstance(message[0], str):
                raise ValueError("not a message")
        except (EOFError, OSError):
            self._on_break("the program ended before the tests did")
        except (ValueError, RecursionError, MemoryError):
            self._on_break("the program broke the line to its tests")
        return message

    _hear = hear

    def ask(self, what: str, *operands: Any, **named: Any) -> Any:
        self.settle()
        if self.missing and self.names is not None:
            self._offer(self.names)
        return super().ask(what, *operands, **named)

    def _offer(self, names: "Names") -> None:
        """Classes of the tests' and modules they import, where the program counts on them being there."""
        for name in sorted(self.missing & names.keys()):
            self.missing.discard(name)
            value = names[name]
            if isinstance(value, type | ModuleType) and not is_mirrored(value):
                super().ask("define", name, value)

    # What the program did to lists and dictionaries of the tests'

    def settle(self) -> None:
        """Do it to them."""
        while self._unsettled:
            self._unsettled.pop(0)()

    def _value(self, sent: codec.Packer, packed: Any, changes: list[Any], origins: list[Any]) -> Any:
        unpacker = codec.Unpacker(self._fetch)
        value = unpacker.unpack(packed)
        for place, origin in origins:
            copied = unpacker.containers[place]
            self._copies[id(copied)] = (copied, sent.containers[origin])
        self._changed(sent, changes)
        if value is None:
            self.settle()
        return value

    def _error(self, what: str, sent: codec.Packer, packed: Any, changes: list[Any]) -> BaseException:
        error = super()._error(what, sent, packed, changes)
        if what == "call" and isinstance(error, StopIteration):  # it would end a `map` as if all were done
            return RuntimeError("the program raised StopIteration")
        return error

    def _changed(self, sent: codec.Packer, changes: list[Any]) -> None:
        if changes:
            change = super()._changed
            self._unsettled.append(lambda: self._read(lambda: change(sent, changes)))

    def is_same(self, one: Any, other: Any) -> bool:
        return self._original(one) is self._original(other)

    def _original(self, value: Any) -> Any:
        copied = self._copies.get(id(value))
        return self._original(copied[1]) if copied is not None else value

    # What the program may do to things of the tests' that it was given

    def _do(self, what: str, *operands: Any, **named: Any) -> Any:
        if what in ("attribute", "set", "delete"):
            thing, name = operands[:2]
            hidden = name.startswith("__") or isinstance(thing, _MACHINERY)
            if hidden and name not in ("__name__", "send", "throw", "close"):
                raise AttributeError(name)
        elif what not in self._doing and what != "call":
            raise ValueError(what)
        return super()._do(what, *operands, **named)

    def _may_name(self, name: str, value: Any) -> bool:
        return True

    def _hold(self, value: Any, packer: codec.Packer) -> dict[str, Any]:
        if is_mirrored(value):
            return super()._hold(value, packer)
        if isinstance(value, ModuleType) and value.__name__.partition(".")[0] in sys.stdlib_module_names:
            return {"global": f"{value.__name__}:"}
        if isinstance(value, BuiltinFunctionType) and (name := global_name(value)):
            return {"global": name}
        return super()._hold(value, packer)

    def _start(self, awaitable: Any) -> None:
        """A coroutine of the tests', which the program awaits while theirs may be under way: in a thread of its own."""
        import asyncio

        async def to_its_end() -> Any:
            return await awaitable

        done: list[Any] = []

        def run() -> None:
            try:
                done.append((asyncio.run(to_its_end()), None))
            except BaseException as error:
                done.append((None, error))

        thread = threading.Thread(target=run)
        self._tasks[id(awaitable)] = (thread, done)

    def _finish(self, awaitable: Any) -> Any:
        thread, done = self._tasks.pop(id(awaitable))
        thread.start()
        thread.join()
        result, error = done[0]
        if error is not None:
            raise error
        return result

    def _say(self, message: list[Any]) -> None:
        try:
            super()._say(message)
        except OSError:
            self._broken("the program ended before the tests did")

    def _broken(self, why: str) -> NoReturn:
        self._on_break(why)


class Names(dict[str, Any]):
    """The global names of the tests. Theirs come first, then Python's own, and the program's only where both have none:
    a program that defines `abs`, `math` or `check` does not change what those mean to a test. What is asked for is
    the program's though, whatever it is called."""

    def __init__(self, program: Program, dotted: set[str], asked: set[str]) -> None:
        """`dotted` are names that the tests use with a dot behind, as they would a module they forgot to import."""
        super().__init__(__name__="__main__", __builtins__=builtins, __file__="tests.py")
        self._program = program
        self._dotted = dotted
        self._asked = asked
        self |= {"__statement__": program.settle, "__assertion__": self._assertion, "__is__": program.is_same}
        self |= {"__leaving__": _leaving}

    def __missing__(self, name: str) -> Any:
        if name in self._asked and (not hasattr(builtins, name) or self._program.ask("has", name)):
            return self._program.ask("name", name)
        if name in _INSTEAD:
            return _INSTEAD[name]
        if hasattr(builtins, name) or name.startswith("__"):
            raise KeyError(name)
        if name in self._dotted and name in sys.stdlib_module_names:
            return __import__(name)
        return self._program.ask("name", name)

    def _assertion(self) -> None:
        self._program.settle()
        self._program.assertions += 1


class Module(ModuleType):
    """What a test imports the program's functions from."""

    def __init__(self, name: str, program: Program) -> None:
        super().__init__(name)
        self._program = program

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._program.ask("name", name)


class Map(map):  # type: ignore[type-arg]
    """`map`, but a function that raises StopIteration does not end it as if all were done, and what the program
    yields is as long as what it is compared with."""

    def __new__(cls, function: Any, *iterables: Any) -> Any:
        def call(*args: Any) -> Any:
            try:
                return function(*args)
            except StopIteration as error:
                raise RuntimeError("StopIteration was raised") from error

        if len(iterables) > 1 and any(map(is_mirrored, iterables)):
            return super().__new__(cls, lambda args: call(*args), zip(*iterables, strict=True))
        return super().__new__(cls, call, *iterables)


_INSTEAD = {"map": Map}


def _leaving(error: SystemExit) -> None:
    """The tests are done: that is well, unless they say otherwise."""
    if error.code:
        raise error
