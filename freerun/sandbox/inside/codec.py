"""Encodes values that tests and an untrusted program send each other over a socket.

Values are rebuilt from Python's own types: nothing that the other side wrote is executed. Mutable containers are
numbered in the order in which they appear. So one that appears twice arrives as one object, and changes that a function
made to its arguments are reported by those numbers. An object that is not a plain value (`values.py`) stays with its
owner and is sent as a reference, for which the other side creates a proxy (`proxies.py`).
"""

import json
import socket
from collections.abc import Callable
from typing import Any

from freerun.sandbox.inside import values

LARGEST_FRAME = 32 << 20
_EXACT = 1 << 53
_REFERENCES = {"mine", "yours", "global"}
"""The keys of a reference: to an object of the sender, to one of the receiver, or to one that both sides have."""

Refer = Callable[[Any, "Packer"], dict[str, Any]]
"""Creates a reference to an object that is not a plain value."""
Resolve = Callable[[dict[str, Any], "Unpacker"], Any]
"""Returns the object that a reference means."""


class Packer:
    """Encodes one message. `containers` are its mutable containers, in the order of their numbers."""

    def __init__(self, refer: Refer, containers: list[Any] | None = None) -> None:
        self._refer = refer
        self.containers = containers if containers is not None else []
        self._numbers = {id(container): number for number, container in enumerate(self.containers)}

    def pack(self, value: Any) -> Any:
        """Encode as JSON: None, booleans, strings, numbers and lists as themselves, all else as {type: [fields]}."""
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return value if -_EXACT < value < _EXACT else {"int": hex(value)}
        if kind is float:
            return value if value - value == 0 else {"float": repr(value)}
        if kind in values.CONTAINERS or values.is_array(kind):
            return self._container(value)
        if kind is tuple or kind is frozenset:
            return {kind.__name__: [self.pack(item) for item in value]}
        if kind is bytes:
            return {"bytes": value.hex()}
        if (encoded := values.fields_of(value)) is not None:
            name, fields = encoded
            return {name: [self.pack(field) for field in fields]}
        return self._refer(value, self)

    def _container(self, value: Any) -> Any:
        if (number := self._numbers.get(id(value))) is not None:
            return {"again": number}
        self._numbers[id(value)] = len(self.containers)
        self.containers.append(value)
        return self.contents(value)

    def contents(self, value: Any) -> Any:
        if type(value) is list:
            return [self.pack(item) for item in value]
        name, contents = values.contents_of(value)
        return {name: [self.pack(item) for item in contents]}


class Unpacker:
    """Decodes one message. Data that no `Packer` makes may raise any exception."""

    def __init__(self, resolve: Resolve, containers: list[Any] | None = None) -> None:
        self._resolve = resolve
        self.containers = containers if containers is not None else []

    def unpack(self, data: Any) -> Any:
        if isinstance(data, list):
            self.containers.append(items := list[Any]())
            items += [self.unpack(item) for item in data]
            return items
        if not isinstance(data, dict):
            return data
        if not _REFERENCES.isdisjoint(data):
            return self._resolve(data, self)
        ((name, fields),) = data.items()
        match name:
            case "again":
                return self.containers[fields]
            case "int":
                return int(fields, 16)
            case "float":
                return float(fields)
            case "bytes":
                return bytes.fromhex(fields)
            case "tuple":
                return tuple([self.unpack(field) for field in fields])
            case "frozenset":
                return frozenset([self.unpack(field) for field in fields])
        if name in values.EMPTY:
            self.containers.append(container := values.empty(name, fields))
            values.fill(container, [self.unpack(field) for field in fields])
            return container
        if name == "ndarray":
            number = len(self.containers)
            self.containers.append(None)
            self.containers[number] = array = values.build_array([self.unpack(field) for field in fields])
            return array
        return values.rebuild(name, [self.unpack(field) for field in fields])

    def refill(self, number: int, data: Any) -> None:
        """Replace the contents of a container, in place."""
        new = self._unpack_contents(data)
        if not values.same_type(container := self.containers[number], new):
            raise ValueError("a container changed its type")
        values.replace(container, new)

    def _unpack_contents(self, data: Any) -> Any:
        """Like `unpack`, for a container that already has a number."""
        if isinstance(data, list):
            return [self.unpack(item) for item in data]
        ((name, fields),) = data.items()
        contents = [self.unpack(field) for field in fields]
        if name == "ndarray":
            return values.build_array(contents)
        values.fill(container := values.empty(name, fields), contents)
        return container


def send(channel: socket.socket, message: Any) -> None:
    body = json.dumps(message).encode()
    channel.sendall(len(body).to_bytes(4, "big") + body)


def receive(channel: socket.socket) -> Any:
    """The next message. EOFError if the other side closed the connection, ValueError if it is not valid."""
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
