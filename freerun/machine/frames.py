"""Messages between a process of ours and the workers that run a user's code.

A frame is four bytes of length and that many of msgpack, or of JSON where msgpack cannot say it. A request and its
reply begin with the same mark: eight bytes that nobody else knows. A reply with another is a stranger's, such as a
process that the user's code forked and forgot.
"""

import json
from typing import IO, Any, TypeVar

import msgspec

T = TypeVar("T")
HEADER_BYTES = 4
MARK_BYTES = 8


def frame(message: Any) -> bytes:
    """A dataclass as a frame."""
    try:
        body = msgspec.msgpack.encode(message)
    except (UnicodeEncodeError, OverflowError):  # half a character; an integer of more than 64 bits
        body = json.dumps(_whole(msgspec.to_builtins(message))).encode()
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def unframed(body: bytes, kind: type[T]) -> T:
    """What `frame` was given. That is no number, so its msgpack never begins with a brace."""
    if body.startswith(b"{"):
        return msgspec.convert(json.loads(body), kind)
    return msgspec.msgpack.decode(body, type=kind)


def _whole(value: Any) -> Any:
    """With a question mark for every half of a character, which JSON can write and UTF-8 cannot."""
    match value:
        case str():
            return value.encode(errors="replace").decode()
        case list():
            return [_whole(item) for item in value]
        case dict():
            return {_whole(key): _whole(item) for key, item in value.items()}
    return value


def read_frame(stream: IO[bytes]) -> bytes | None:
    """The body of the next frame, or None at the end of the stream."""
    header = stream.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        return None
    size = int.from_bytes(header, "big")
    body = stream.read(size)
    return body if len(body) == size else None
