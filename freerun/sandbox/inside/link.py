"""The link between a program and its tests: each side asks the other to operate on an object, and gets the result.

`Link` consumes calls of `ask` and produces the other side's answer, a value or an exception. Waits for the other side;
unblocked by its answer or by its end. While it waits, it answers the other side's requests in turn: this is how the
program calls back a function that the tests passed to it. Changes that a call makes to mutable arguments are made to
the originals too.
"""

import copy
import operator
import socket
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from freerun.sandbox.inside import codec
from freerun.sandbox.inside.naming import (
    PLAIN_MODULES,
    call_special,
    contents_of,
    describe,
    find_global,
    global_name,
)
from freerun.sandbox.inside.proxies import ProxyClass, is_proxy, make_class, make_object, run_remotely, state

BROKEN = "the program broke the connection to its tests"


class Link:
    untrusted = False
    """Whether the other side is the program. It must not learn what its results are compared with."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._objects: list[Any] = []
        """The objects of this side that the other refers to, by number."""
        self._numbers: dict[int, int] = {}
        self._described: set[int] = set()
        self._described_in_message: list[int] = []
        self._proxies: dict[int, Any] = {}
        self._internal_classes: dict[str, ProxyClass] = {}
        self._tasks: dict[int, Any] = {}
        self._loop: Any = None
        self._operations: dict[str, Callable[..., Any]] = {
            **{"attribute": getattr, "set": setattr, "delete": delattr, "item": operator.getitem, "len": len},
            **{"iter": iter, "special": call_special, "contents": contents_of, "copy": copy.copy, "dir": dir},
            **{"deepcopy": copy.deepcopy, "start": self._start, "finish": self._finish},
        }

    def ask(self, operation: str, *operands: Any, **named: Any) -> Any:
        """Have the other side perform an operation. Returns its result, or raises what it raised."""
        packer = codec.Packer(self._refer)
        packed = self._packed(packer, operands)
        self._send([operation, packed, [[name, self._packed(packer, value)] for name, value in named.items()]])
        while True:
            match message := self._receive():
                case ["value", value, changes, origins]:
                    return self._decode(lambda: self._decode_value(packer, value, changes, origins))
                case ["raised", error, changes]:
                    raise self._decode(lambda: self._decode_error(operation, packer, error, changes))
                case [str(), _, list()]:
                    self.answer(message)
                case _:
                    self._fail(BROKEN)

    def answer(self, message: list[Any]) -> None:
        """Perform the operation that the other side asks for, and send its result."""
        operation, packed, named = message
        unpacker = codec.Unpacker(self._resolve)
        operands, keywords = self._decode(
            lambda: (unpacker.unpack(packed), {name: unpacker.unpack(value) for name, value in named})
        )
        arguments = list(unpacker.containers)
        before = self._container_states(arguments)
        try:
            reply = self._value_reply(self._do(operation, *operands, **keywords), arguments)
        except BaseException as error:  # SystemExit too: the other side is told instead of losing its peer
            reply = ["raised", self._packed_error(error)]
        after = self._container_states(arguments)
        changes = [[n, new] for n, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
        self._send([*reply[:2], changes, *reply[2:]])

    def _value_reply(self, result: Any, arguments: list[Any]) -> list[Any]:
        """The result, and which containers in it are arguments that were passed in."""
        packer = codec.Packer(self._refer)
        packed = self._packed(packer, result)
        numbers = {id(container): number for number, container in enumerate(arguments)}
        origins = [[n, numbers[id(c)]] for n, c in enumerate(packer.containers) if id(c) in numbers]
        return ["value", packed, origins]

    def _packed_error(self, error: BaseException) -> Any:
        try:
            return self._packed(codec.Packer(self._refer), error)
        except Exception:  # its arguments cannot be sent
            return self._packed(codec.Packer(self._refer), RuntimeError(type(error).__name__))

    def _packed(self, packer: codec.Packer, value: Any) -> Any:
        """Pack a value. If that fails, the other side has not received the descriptions of the objects in it."""
        self._described_in_message = []
        try:
            return packer.pack(value)
        except BaseException:
            self._described.difference_update(self._described_in_message)
            raise

    def _container_states(self, containers: list[Any]) -> list[Any]:
        packer = codec.Packer(self._refer, list(containers))
        return [packer.contents(container) for container in containers]

    def _do(self, operation: str, *operands: Any, **named: Any) -> Any:
        if operation == "call":
            function, *args = operands
            return function(*args, **named)
        return self._operations[operation](*operands)

    def _decode_value(self, sent: codec.Packer, packed: Any, changes: list[Any], origins: list[Any]) -> Any:
        unpacker = codec.Unpacker(self._resolve)
        value = unpacker.unpack(packed)
        self._apply_changes(sent, changes)
        return value

    def _decode_error(self, operation: str, sent: codec.Packer, packed: Any, changes: list[Any]) -> BaseException:
        error = codec.Unpacker(self._resolve).unpack(packed)
        if not isinstance(error, BaseException):
            raise TypeError
        self._apply_changes(sent, changes)
        return error

    def _apply_changes(self, sent: codec.Packer, changes: list[Any]) -> None:
        unpacker = codec.Unpacker(self._resolve, list(sent.containers))
        for number, contents in changes:
            unpacker.refill(number, contents)

    # References to objects

    def _refer(self, value: Any, packer: codec.Packer) -> dict[str, Any]:
        if is_proxy(value) and state(value)[0] is self:
            return {"yours": state(value)[1]}
        if (name := global_name(value)) and self._may_share(name, value):
            return {"global": name}
        number = self._numbers.setdefault(id(value), len(self._objects))
        if number == len(self._objects):
            self._objects.append(value)  # kept alive, so that no other object gets its id
        if number in self._described:
            return {"mine": number}
        self._described.add(number)
        self._described_in_message.append(number)
        return {"mine": number, **describe(value, packer)}

    def _may_share(self, name: str, value: Any) -> bool:
        """Whether to send a global object by its name, so that the other side uses its own."""
        return isinstance(value, type) and name.rpartition(".")[0] in PLAIN_MODULES

    def _resolve(self, data: dict[str, Any], unpacker: codec.Unpacker) -> Any:
        if "yours" in data:
            return self._objects[data["yours"]]
        if "global" in data:
            return self._find_global(str(data["global"]))
        number = data["mine"]
        if number not in self._proxies:
            self._proxies[number] = self._make_proxy(number, data, unpacker)
        proxy = self._proxies[number]
        return run_remotely(proxy) if type(proxy).__name__ == "CoroutineType" else proxy

    def _find_global(self, name: str) -> Any:
        module, _, _ = name.rpartition(".")
        found = find_global(name)
        if self.untrusted and not (module in PLAIN_MODULES and isinstance(found, type)):
            raise ValueError(name)
        return found

    def _make_proxy(self, number: int, data: dict[str, Any], unpacker: codec.Unpacker) -> Any:
        if "type" in data:
            name, bases, special, like = data["type"]
            kinds = [unpacker.unpack(base) for base in bases]
            return make_class(self, number, str(name), kinds, special, unpacker.unpack(like))
        if "class" in data:
            return make_object(unpacker.unpack(data["class"]), self, number, unpacker.unpack(data.get("value")))
        return make_object(self._internal_class(str(data["like"]), data["special"]), self, number, None)

    def _internal_class(self, like: str, special: list[str]) -> ProxyClass:
        """The proxy class for objects of Python's internal types, such as functions, generators and maps."""
        if like not in self._internal_classes:
            module, _, name = like.rpartition(".")
            kind = getattr(sys.modules.get(module), name, None)
            known = kind if isinstance(kind, type) else None
            self._internal_classes[like] = make_class(self, -1, name, [], special, known)
        return self._internal_classes[like]

    # Coroutines are started first and waited for later, so that several can run at once

    def _start(self, awaitable: Any) -> None:
        import asyncio

        async def run() -> Any:
            return await awaitable

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        self._tasks[id(awaitable)] = self._loop.create_task(run())

    def _finish(self, awaitable: Any) -> Any:
        return self._loop.run_until_complete(self._tasks.pop(id(awaitable)))

    # Messages

    def _decode(self, decode: Callable[[], Any]) -> Any:
        """Decode something received. A message that cannot be decoded breaks the connection."""
        try:
            return decode()
        except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, ImportError) as error:
            self._fail(f"{BROKEN} ({type(error).__name__})")
        except (RecursionError, MemoryError):
            self._fail(BROKEN)

    def _send(self, message: list[Any]) -> None:
        codec.send(self._channel, message)

    def _receive(self) -> list[Any]:
        message: list[Any] = codec.receive(self._channel)
        return message

    def _fail(self, why: str) -> NoReturn:
        raise EOFError(why)
