"""The tests' end of the link to the program, which is another process and may lie.

Whatever the program sends arrives as a value. Expected values never leave this side.
"""

import builtins
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
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
from freerun.sandbox.inside.link import BROKEN, Link
from freerun.sandbox.inside.naming import global_name
from freerun.sandbox.inside.proxies import is_proxy

ENDED = "the program ended before the tests did"
_REVEALING_TYPES = (
    *(FunctionType, BuiltinFunctionType, MethodType, ModuleType, GeneratorType, CoroutineType, AsyncGeneratorType),
    *(FrameType, CodeType, TracebackType),
)
"""Types whose attributes lead to the rest of the test process."""


class ProgramLink(Link):
    untrusted = True

    def __init__(self, channel: socket.socket, on_break: Callable[[str], NoReturn]) -> None:
        super().__init__(channel)
        self.assertions = 0
        self.test_names: dict[str, Any] | None = None
        """The tests' global names."""
        self.missing: set[str] = set()
        """Names that the program uses and does not define."""
        self._on_break = on_break
        self._pending_changes: list[Callable[[], None]] = []
        self._copies: dict[int, tuple[Any, Any]] = {}
        self._streams = (sys.stdout, sys.stderr)
        self._capturing = False
        self._operations |= {"input": lambda prompt: builtins.input(prompt)}

    def receive(self) -> list[Any]:
        """The next message. If the program has ended or sends garbage, the tests end at once and cannot catch it."""
        try:
            message = codec.receive(self._channel)
            if not isinstance(message, list) or not message or not isinstance(message[0], str):
                raise ValueError("not a message")
            if message[0] == "output":
                _print(*message[1:])
                return self.receive()
        except (EOFError, OSError):
            self._on_break(ENDED)
        except (ValueError, RecursionError, MemoryError):
            self._on_break(BROKEN)
        return message

    _receive = receive

    def ask(self, operation: str, *operands: Any, **named: Any) -> Any:
        self.apply_pending_changes()
        if self.missing and self.test_names is not None:
            self._define_missing(self.test_names)
        if self._capturing is (sys.stdout is self._streams[0] and sys.stderr is self._streams[1]):
            self._capturing = not self._capturing  # tests have replaced or restored a stream
            super().ask("capture", self._capturing)
        return super().ask(operation, *operands, **named)

    def _define_missing(self, names: dict[str, Any]) -> None:
        """Give the program the classes and modules of the tests that it uses and does not define."""
        for name in sorted(self.missing & names.keys()):
            self.missing.discard(name)
            value = names[name]
            if isinstance(value, type | ModuleType) and not is_proxy(value):
                super().ask("define", name, value)

    # Changes that the program made to containers of the tests

    def apply_pending_changes(self) -> None:
        while self._pending_changes:
            self._pending_changes.pop(0)()

    def _decode_value(self, sent: codec.Packer, packed: Any, changes: list[Any], origins: list[Any]) -> Any:
        unpacker = codec.Unpacker(self._resolve)
        value = unpacker.unpack(packed)
        for number, origin in origins:
            copied = unpacker.containers[number]
            self._copies[id(copied)] = (copied, sent.containers[origin])
        self._apply_changes(sent, changes)
        if value is None:
            self.apply_pending_changes()
        return value

    def _decode_error(self, operation: str, sent: codec.Packer, packed: Any, changes: list[Any]) -> BaseException:
        error = super()._decode_error(operation, sent, packed, changes)
        if operation == "call" and isinstance(error, StopIteration):  # it would end a `map` of the tests early
            return RuntimeError("the program raised StopIteration")
        return error

    def _apply_changes(self, sent: codec.Packer, changes: list[Any]) -> None:
        if changes:
            apply = super()._apply_changes
            self._pending_changes.append(lambda: self._decode(lambda: apply(sent, changes)))

    def is_same(self, one: Any, other: Any) -> bool:
        """`one is other`, where a container that the program returned is the argument that it was given."""
        return self._original(one) is self._original(other)

    def _original(self, value: Any) -> Any:
        copied = self._copies.get(id(value))
        return self._original(copied[1]) if copied is not None else value

    # What the program may do to objects of the tests

    def _do(self, operation: str, *operands: Any, **named: Any) -> Any:
        if operation in ("attribute", "set", "delete"):
            thing, name = operands[:2]
            hidden = name.startswith("__") or isinstance(thing, _REVEALING_TYPES)
            if hidden and name not in ("__name__", "send", "throw", "close"):
                raise AttributeError(name)
        elif operation not in self._operations and operation != "call":
            raise ValueError(operation)
        return super()._do(operation, *operands, **named)

    def _may_share(self, name: str, value: Any) -> bool:
        return True

    def _refer(self, value: Any, packer: codec.Packer) -> dict[str, Any]:
        if is_proxy(value):
            return super()._refer(value, packer)
        if isinstance(value, ModuleType) and value.__name__.partition(".")[0] in sys.stdlib_module_names:
            return {"global": f"{value.__name__}:"}
        if isinstance(value, BuiltinFunctionType) and (name := global_name(value)):
            return {"global": name}
        return super()._refer(value, packer)

    def _start(self, awaitable: Any) -> None:
        """Prepare to run a coroutine of the tests in a thread of its own: an event loop may be running in this one."""
        import asyncio

        async def wait() -> Any:
            return await awaitable

        outcome: list[Any] = []

        def run() -> None:
            try:
                outcome.append((asyncio.run(wait()), None))
            except BaseException as error:
                outcome.append((None, error))

        thread = threading.Thread(target=run)
        self._tasks[id(awaitable)] = (thread, outcome)

    def _finish(self, awaitable: Any) -> Any:
        thread, outcome = self._tasks.pop(id(awaitable))
        thread.start()
        thread.join()
        result, error = outcome[0]
        if error is not None:
            raise error
        return result

    def _send(self, message: list[Any]) -> None:
        try:
            super()._send(message)
        except OSError:
            self._fail(ENDED)

    def _fail(self, why: str) -> NoReturn:
        self._on_break(why)


def _print(out: Any, err: Any) -> None:
    """Write what the program printed to the tests' streams."""
    if not isinstance(out, str) or not isinstance(err, str):
        raise ValueError("not text")
    for stream, text in ((sys.stdout, out), (sys.stderr, err)):
        with suppress(ValueError):  # the tests have closed it
            stream.write(text)
