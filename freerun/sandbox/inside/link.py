"""The line between a program and its tests: each asks the other to do something to an object, and answers likewise.

`Link` consumes calls of `ask` and produces what the other side answers, a value or an exception. Waits for the other
side; unblocked by its answer or by its end. While it waits it does what the other side asks in between: a function of
the tests' that the program was given is called back so. What a call did to the lists and dictionaries it was given is
done to the originals as well.
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
    described,
    found_by,
    global_name,
)
from freerun.sandbox.inside.proxies import Mirror, awaiting, is_mirrored, make_class, make_object, state


class Link:
    guarded = False

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._held: list[Any] = []
        self._places: dict[int, int] = {}
        self._told: set[int] = set()
        self._telling: list[int] = []
        self._known: dict[int, Any] = {}
        self._internal: dict[str, Mirror] = {}
        self._tasks: dict[int, Any] = {}
        self._loop: Any = None
        self._doing: dict[str, Callable[..., Any]] = {
            **{"attribute": getattr, "set": setattr, "delete": delattr, "item": operator.getitem, "len": len},
            **{"iter": iter, "special": call_special, "contents": contents_of, "copy": copy.copy, "dir": dir},
            **{"deepcopy": copy.deepcopy, "start": self._start, "finish": self._finish},
        }

    def ask(self, what: str, *operands: Any, **named: Any) -> Any:
        """One question and its answer; what was raised over there is raised here."""
        packer = codec.Packer(self._hold)
        self._say([what, self._packed(packer, operands), [[n, self._packed(packer, v)] for n, v in named.items()]])
        while True:
            match message := self._hear():
                case ["value", value, changes, origins]:
                    return self._read(lambda: self._value(packer, value, changes, origins))
                case ["raised", error, changes]:
                    raise self._read(lambda: self._error(what, packer, error, changes))
                case [str(), _, list()]:
                    self.answer(message)
                case _:
                    self._broken("the program broke the line to its tests")

    def answer(self, message: list[Any]) -> None:
        """Do what is asked, and say what came of it."""
        what, packed, named = message
        unpacker = codec.Unpacker(self._fetch)
        operands, keywords = self._read(
            lambda: (unpacker.unpack(packed), {name: unpacker.unpack(value) for name, value in named})
        )
        given = list(unpacker.containers)
        before = self._states(given)
        try:
            reply = self._done(self._do(what, *operands, **keywords), given)
        except BaseException as error:  # SystemExit too: leaving is no answer, and the other side is told so
            reply = ["raised", self._raised(error)]
        changes = [[n, new] for n, (old, new) in enumerate(zip(before, self._states(given), strict=True)) if old != new]
        self._say([*reply[:2], changes, *reply[2:]])

    def _done(self, result: Any, given: list[Any]) -> list[Any]:
        packer = codec.Packer(self._hold)
        packed = self._packed(packer, result)
        places = {id(container): place for place, container in enumerate(given)}
        origins = [[n, places[id(c)]] for n, c in enumerate(packer.containers) if id(c) in places]
        return ["value", packed, origins]

    def _raised(self, error: BaseException) -> Any:
        try:
            return self._packed(codec.Packer(self._hold), error)
        except Exception:  # arguments that cannot be sent
            return self._packed(codec.Packer(self._hold), RuntimeError(type(error).__name__))

    def _packed(self, packer: codec.Packer, value: Any) -> Any:
        """What cannot be packed has told the other side nothing."""
        self._telling = []
        try:
            return packer.pack(value)
        except BaseException:
            self._told.difference_update(self._telling)
            raise

    def _states(self, given: list[Any]) -> list[Any]:
        packer = codec.Packer(self._hold, list(given))
        return [packer.contents(container) for container in given]

    def _do(self, what: str, *operands: Any, **named: Any) -> Any:
        if what == "call":
            function, *args = operands
            return function(*args, **named)
        return self._doing[what](*operands)

    def _value(self, sent: codec.Packer, packed: Any, changes: list[Any], origins: list[Any]) -> Any:
        unpacker = codec.Unpacker(self._fetch)
        value = unpacker.unpack(packed)
        self._changed(sent, changes)
        return value

    def _error(self, what: str, sent: codec.Packer, packed: Any, changes: list[Any]) -> BaseException:
        error = codec.Unpacker(self._fetch).unpack(packed)
        if not isinstance(error, BaseException):
            raise TypeError
        self._changed(sent, changes)
        return error

    def _changed(self, sent: codec.Packer, changes: list[Any]) -> None:
        unpacker = codec.Unpacker(self._fetch, list(sent.containers))
        for number, contents in changes:
            unpacker.refill(number, contents)

    # Objects that stay where they are

    def _hold(self, value: Any, packer: codec.Packer) -> dict[str, Any]:
        if is_mirrored(value) and state(value)[0] is self:
            return {"yours": state(value)[1]}
        if (name := global_name(value)) and self._may_name(name, value):
            return {"global": name}
        place = self._places.setdefault(id(value), len(self._held))
        if place == len(self._held):
            self._held.append(value)  # kept alive, so that its id stays its own
        if place in self._told:
            return {"mine": place}
        self._told.add(place)
        self._telling.append(place)
        return {"mine": place, **described(value, packer)}

    def _may_name(self, name: str, value: Any) -> bool:
        """Whether both sides have it by that name, and may."""
        return isinstance(value, type) and name.rpartition(".")[0] in PLAIN_MODULES

    def _fetch(self, data: dict[str, Any], unpacker: codec.Unpacker) -> Any:
        if "yours" in data:
            return self._held[data["yours"]]
        if "global" in data:
            return self._named(str(data["global"]))
        number = data["mine"]
        if number not in self._known:
            self._known[number] = self._mirrored(number, data, unpacker)
        known = self._known[number]
        return awaiting(known) if type(known).__name__ == "CoroutineType" else known

    def _named(self, name: str) -> Any:
        module, _, _ = name.rpartition(".")
        found = found_by(name)
        if self.guarded and not (module in PLAIN_MODULES and isinstance(found, type)):
            raise ValueError(name)
        return found

    def _mirrored(self, number: int, data: dict[str, Any], unpacker: codec.Unpacker) -> Any:
        if "type" in data:
            name, bases, special, like = data["type"]
            kinds = [unpacker.unpack(base) for base in bases]
            return make_class(self, number, str(name), kinds, special, unpacker.unpack(like))
        if "class" in data:
            return make_object(unpacker.unpack(data["class"]), self, number, unpacker.unpack(data.get("value")))
        return make_object(self._internals(str(data["like"]), data["special"]), self, number, None)

    def _internals(self, like: str, special: list[str]) -> Mirror:
        """The class for what Python itself makes: a function, a generator, a map."""
        if like not in self._internal:
            module, _, name = like.rpartition(".")
            kind = getattr(sys.modules.get(module), name, None)
            self._internal[like] = make_class(self, -1, name, [], special, kind if isinstance(kind, type) else None)
        return self._internal[like]

    # Coroutines: started, then waited for, so that several can be under way

    def _start(self, awaitable: Any) -> None:
        import asyncio

        async def to_its_end() -> Any:
            return await awaitable

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        self._tasks[id(awaitable)] = self._loop.create_task(to_its_end())

    def _finish(self, awaitable: Any) -> Any:
        return self._loop.run_until_complete(self._tasks.pop(id(awaitable)))

    # The line itself

    def _read(self, read: Callable[[], Any]) -> Any:
        """What was heard; a message that makes no sense breaks the line."""
        try:
            return read()
        except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, ImportError) as error:
            self._broken(f"the program broke the line to its tests ({type(error).__name__})")
        except (RecursionError, MemoryError):
            self._broken("the program broke the line to its tests")

    def _say(self, message: list[Any]) -> None:
        codec.send(self._channel, message)

    def _hear(self) -> list[Any]:
        message: list[Any] = codec.receive(self._channel)
        return message

    def _broken(self, why: str) -> NoReturn:
        raise EOFError(why)
