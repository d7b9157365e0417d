"""Values over a socket, between tests and a program that may lie.

What arrives is rebuilt from types of Python's own: nothing that the other side wrote is executed. Lists, dictionaries
and the like are numbered as they are come to, so that one which is there twice arrives as one, and so that what a
function did to its arguments can be told by their numbers. Whatever is no plain value is held by its owner, and arrives
as something that stands for it (`mirror.py`).
"""

import json
import socket
from collections.abc import Callable
from typing import Any

from freerun.sandbox.inside import plain

LARGEST_FRAME = 32 << 20
_EXACT = 1 << 53
_NAMED = {"mine", "yours", "global"}
"""What names an object that stays where it is, or one that both sides have."""

Hold = Callable[[Any, "Packer"], dict[str, Any]]
"""Keeps an object that is no plain value, and names it for the other side."""
Fetch = Callable[[dict[str, Any], "Unpacker"], Any]
"""What the other side named."""


class Packer:
    """One message. `containers` are what can change in it, in the order of their numbers."""

    def __init__(self, hold: Hold, containers: list[Any] | None = None) -> None:
        self._hold = hold
        self.containers = containers if containers is not None else []
        self._numbers = {id(container): number for number, container in enumerate(self.containers)}

    def pack(self, value: Any) -> Any:
        """As JSON has it: null, truth, text, numbers and lists as they are, all else as {"what it is": its parts}."""
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return value if -_EXACT < value < _EXACT else {"int": hex(value)}
        if kind is float:
            return value if value - value == 0 else {"float": repr(value)}
        if kind in plain.CONTAINERS or plain.is_array(kind):
            return self._container(value)
        if kind is tuple or kind is frozenset:
            return {kind.__name__: [self.pack(item) for item in value]}
        if kind is bytes:
            return {"bytes": value.hex()}
        if (parts := plain.parts_of(value)) is not None:
            name, values = parts
            return {name: [self.pack(part) for part in values]}
        return self._hold(value, self)

    def _container(self, value: Any) -> Any:
        if (number := self._numbers.get(id(value))) is not None:
            return {"again": number}
        self._numbers[id(value)] = len(self.containers)
        self.containers.append(value)
        return self.contents(value)

    def contents(self, value: Any) -> Any:
        if type(value) is list:
            return [self.pack(item) for item in value]
        name, contents = plain.contents_of(value)
        return {name: [self.pack(part) for part in contents]}


class Unpacker:
    """One message, as `Packer` made it. Raises whatever comes of data that it would not have made."""

    def __init__(self, fetch: Fetch, containers: list[Any] | None = None) -> None:
        self._fetch = fetch
        self.containers = containers if containers is not None else []

    def unpack(self, data: Any) -> Any:
        if isinstance(data, list):
            self.containers.append(items := list[Any]())
            items += [self.unpack(item) for item in data]
            return items
        if not isinstance(data, dict):
            return data
        if not _NAMED.isdisjoint(data):
            return self._fetch(data, self)
        ((name, parts),) = data.items()
        match name:
            case "again":
                return self.containers[parts]
            case "int":
                return int(parts, 16)
            case "float":
                return float(parts)
            case "bytes":
                return bytes.fromhex(parts)
            case "tuple":
                return tuple([self.unpack(part) for part in parts])
            case "frozenset":
                return frozenset([self.unpack(part) for part in parts])
        if name in plain.EMPTY:
            self.containers.append(container := plain.empty(name, parts))
            plain.fill(container, [self.unpack(part) for part in parts])
            return container
        if name == "ndarray":
            place = len(self.containers)
            self.containers.append(None)
            self.containers[place] = array = plain.array_of([self.unpack(part) for part in parts])
            return array
        return plain.rebuild(name, [self.unpack(part) for part in parts])

    def refill(self, number: int, data: Any) -> None:
        """Give a container what it now holds, in place."""
        new = self.parts(data)
        if not plain.same_shape(container := self.containers[number], new):
            raise ValueError("another kind")
        plain.replace(container, new)

    def parts(self, data: Any) -> Any:
        """Like `unpack`, of a container that has its number already."""
        if isinstance(data, list):
            return [self.unpack(item) for item in data]
        ((name, parts),) = data.items()
        values = [self.unpack(part) for part in parts]
        if name == "ndarray":
            return plain.array_of(values)
        plain.fill(container := plain.empty(name, parts), values)
        return container


def send(channel: socket.socket, message: Any) -> None:
    body = json.dumps(message).encode()
    channel.sendall(len(body).to_bytes(4, "big") + body)


def receive(channel: socket.socket) -> Any:
    """The next message. EOFError when there is none to come, ValueError when it is not one."""
    size = int.from_bytes(_exactly(channel, 4), "big")
    if size > LARGEST_FRAME:
        raise ValueError(f"a message of {size} bytes")
    return json.loads(_exactly(channel, size))


def _exactly(channel: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = channel.recv(min(size - len(data), 1 << 20))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)
