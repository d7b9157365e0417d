"""Plain data over a socket, between tests and a program that may lie.

What arrives is rebuilt from built-in types alone: nothing that the other side wrote is executed, and an object whose
`__eq__` says yes to everything arrives as a handle that equals nothing.
"""

import json
import socket
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

LARGEST_FRAME = 32 << 20
_EXACT = 1 << 53

Hold = Callable[[Any], dict[str, Any]]
"""Keeps an object that is no plain data, and names it for the other side."""
Fetch = Callable[[str, int], Any]
"""What the other side named."""


def pack(value: Any, hold: Hold) -> Any:
    """As JSON has it: null, truth, text, numbers and lists as they are, all else as {"what it is": its contents}."""
    match value:
        case None | bool():
            return value
        case str():
            return str.__str__(value)
        case int():
            return int(value) if -_EXACT < value < _EXACT else {"int": hex(value)}
        case float():
            return float(value) if value - value == 0 else {"float": repr(float(value))}
        case list():
            return [pack(item, hold) for item in value]
        case tuple() | set() | frozenset() | deque():
            kind = next(kind for kind in (tuple, set, frozenset, deque) if isinstance(value, kind))
            return {kind.__name__: [pack(item, hold) for item in value]}
        case dict():
            return {"dict": [[pack(key, hold), pack(item, hold)] for key, item in value.items()]}
        case bytes() | bytearray():
            return {"bytes" if isinstance(value, bytes) else "bytearray": value.hex()}
        case complex():
            return {"complex": [pack(value.real, hold), pack(value.imag, hold)]}
        case range():
            return {"range": [pack(part, hold) for part in (value.start, value.stop, value.step)]}
        case Decimal():
            return {"Decimal": str(value)}
        case Fraction():
            return {"Fraction": [pack(value.numerator, hold), pack(value.denominator, hold)]}
        case _ if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
            return pack(value.tolist(), hold)  # its numbers are Python's, and its arrays lists
    return hold(value)


_REBUILD: dict[str, Callable[[Any], Any]] = {
    "int": lambda text: int(text, 16),
    "float": float,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
    "dict": dict,
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "complex": lambda parts: complex(*parts),
    "range": lambda parts: range(*parts),
    "Decimal": Decimal,
    "Fraction": lambda parts: Fraction(*parts),
    "iterator": iter,
}


def unpack(data: Any, fetch: Fetch) -> Any:
    """The value. Raises whatever comes of data that `pack` would not have made."""
    if isinstance(data, list):
        return [unpack(item, fetch) for item in data]
    if not isinstance(data, dict):
        return data
    ((kind, contents),) = data.items()
    if kind in _REBUILD:
        return _REBUILD[kind](unpack(contents, fetch))
    return fetch(kind, int(contents))


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
