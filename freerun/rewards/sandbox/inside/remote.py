"""A program as the tests see it: in another process, behind a socket.

`Link` consumes calls of the tests and produces what the program answers, as plain data. Waits for the program;
unblocked by its answer or by its end. Whatever it says, it can only say as a value: expected values stay on this side,
and an operation that would show it one (comparing, calculating) is not sent over. Two of its own objects it may
compare.
"""

import builtins
import socket
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NoReturn

from freerun.rewards.sandbox.inside import codec


class CannotBeSent(TypeError):
    """The tests hand the program something that is no plain data: a fault of the task, not of the answer."""


class Link:
    def __init__(self, channel: socket.socket, on_break: Callable[[str], NoReturn]) -> None:
        self._channel = channel
        self._on_break = on_break
        self._callbacks: list[Callable[..., Any]] = []

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

    def ask(self, what: str, *operands: Any, **named: Any) -> Any:
        """One question and its answer; what the program raised is raised here, as the nearest built-in exception."""
        self._say([what, codec.pack(operands, self._hold), codec.pack(named, self._hold)])
        while True:
            message = self.hear()
            try:
                match message:
                    case ["value", value]:
                        return codec.unpack(value, self._fetch)
                    case ["changed", values]:
                        _write_back(operands, codec.unpack(values, self._fetch))
                        return None
                    case ["raised", str(name), args]:
                        raised = _exception(name, codec.unpack(args, self._fetch))
                    case ["call back", int(index), args, named]:
                        callback = self._callbacks[index]
                        arguments, keywords = (codec.unpack(part, self._fetch) for part in (args, named))
                        self._say(_answer(lambda: codec.pack(callback(*arguments, **keywords), self._hold)))  # noqa: B023
                        continue
                    case _:
                        raise ValueError
            except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, MemoryError):
                self._on_break("the program broke the line to its tests")
            raise raised

    def _say(self, message: list[Any]) -> None:
        try:
            codec.send(self._channel, message)
        except OSError:
            self._on_break("the program ended before the tests did")

    def _hold(self, value: Any) -> dict[str, Any]:
        if isinstance(value, Remote):
            return {"held": object.__getattribute__(value, "_index")}
        if isinstance(value, Iterator):
            return {"iterator": [codec.pack(item, self._hold) for item in value]}
        if not callable(value):
            raise CannotBeSent(f"the tests give the program a {type(value).__name__}, which is no plain data")
        self._callbacks.append(value)
        return {"callback": len(self._callbacks) - 1}

    def _fetch(self, kind: str, index: int) -> Any:
        if kind != "held":
            raise ValueError
        return Remote(self, index)


class Remote:
    """An object of the program's: a function, a class, an instance. To be called, read and written to, no more."""

    def __init__(self, link: Link, index: int) -> None:
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_index", index)

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._ask("call", *args, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._ask("attribute", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("set", name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._ask("item", key)

    def __len__(self) -> int:
        return int(self._ask("len"))

    def __bool__(self) -> bool:
        return bool(self._ask("bool"))

    def __iter__(self) -> Iterator[Any]:
        items = self._ask("iter")
        while True:
            try:
                yield items._ask("next")
            except StopIteration:
                return

    def __next__(self) -> Any:
        return self._ask("next")

    def __str__(self) -> str:
        return str(self._ask("str"))

    def __repr__(self) -> str:
        return str(self._ask("repr"))

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Remote) and bool(self._ask("same", other)))

    def __hash__(self) -> int:
        return id(self)

    def _ask(self, what: str, *operands: Any, **named: Any) -> Any:
        link: Link = object.__getattribute__(self, "_link")
        return link.ask(what, self, *operands, **named)


class Names(dict[str, Any]):
    """The global names of the tests. Theirs come first, then Python's own, and the program's only where both have none:
    a program that defines `abs`, `math` or `check` does not change what those mean to a test."""

    def __init__(self, link: Link, dotted: set[str]) -> None:
        """`dotted` are names that the tests use with a dot behind, as they would a module they forgot to import."""
        super().__init__(__name__="tests")
        self._link = link
        self._dotted = dotted

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name) or name.startswith("__"):
            raise KeyError(name)
        if name in self._dotted and name in sys.stdlib_module_names:
            return __import__(name)
        return self._link.ask("name", name)


class Module(ModuleType):
    """What a test imports the program's functions from."""

    def __init__(self, name: str, link: Link) -> None:
        super().__init__(name)
        self._link = link

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._link.ask("name", name)


def _answer(produce: Callable[[], Any]) -> list[Any]:
    try:
        return ["value", produce()]
    except Exception as error:  # the test's own function, called by the program
        return ["raised", type(error).__name__, {"tuple": [str(error)]}]


def is_the_programs(error: BaseException) -> bool:
    """It was raised over there, and not by the tests themselves."""
    return getattr(error, "from_program", False) is True


def _exception(name: str, args: Any) -> BaseException:
    kind = getattr(builtins, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        kind, args = RuntimeError, (name, *args)  # SystemExit, or no exception at all
    try:
        error = kind(*args)
    except TypeError:  # UnicodeDecodeError and a few others want arguments of their own kind
        error = kind.__new__(kind)
    error.from_program = True  # type: ignore[attr-defined]
    return error


def _write_back(operands: tuple[Any, ...], values: Any) -> None:
    """What a function that returned nothing did to its arguments, which is all that it can have been called for."""
    for mine, changed in zip(operands, values, strict=True):
        if type(mine) is not type(changed):
            continue
        if isinstance(mine, list):
            mine[:] = changed
        elif isinstance(mine, dict | set):
            mine.clear()
            mine.update(changed)
