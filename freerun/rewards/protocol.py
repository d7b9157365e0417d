"""What service, forkserver and worker say to each other.

Service and worker: a mark and a request, and the same mark and a verdict for each, in order. A mark is eight bytes
that nobody else knows: a reply with another is a stranger's, such as a process that a judge forked and forgot. A frame
is four bytes of length and that many of msgpack, or of JSON where msgpack cannot say it. The first frame of a worker is
a verdict too, without a mark, as is the forkserver's: OK when the judges are loaded, ERROR when they could not be. The
worker's says SEES_SAMPLES as its detail if one of its judges asks for the whole sample.

Service and forkserver, after that: an order, and a reply for each, in order, both one number. The order 0 comes with
two file descriptors, a worker's socket and where it prints to, and is to fork it; the reply is its process id. Any
other order is the id of a worker to end, with all it started; the reply is its exit code as `subprocess` writes it, or
WAS_ALIVE. Minus the id is the same of a worker that has closed its socket: it is about to die by itself, and its exit
code is waited for.
"""

import json
import struct
from dataclasses import dataclass, field
from typing import IO, Any, TypeVar

import msgspec

from freerun.core import Task
from freerun.rewards.base import JudgedSample, Verdict

T = TypeVar("T")
HEADER_BYTES = 4
MARK_BYTES = 8
ORDER = struct.Struct("!q")
FORK = 0
SEES_SAMPLES = "sees samples"
WAS_ALIVE = 1 << 20
"""Not an exit code."""


@dataclass(frozen=True, slots=True)
class Request:
    task: Task
    text: str
    group: list[JudgedSample] = field(default_factory=list)
    """All answers to the task, for judges that ask for the whole sample; else empty."""
    index: int = 0
    """Which of them is to be judged."""


def frame(message: Request | Verdict) -> bytes:
    try:
        body = msgspec.msgpack.encode(message)
    except (UnicodeEncodeError, OverflowError):  # half a character; an integer of more than 64 bits
        body = json.dumps(_whole(msgspec.to_builtins(message))).encode()
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def unframed(body: bytes, kind: type[T]) -> T:
    """What `frame` was given. Neither of the two is a number, so its msgpack never begins with a brace."""
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
