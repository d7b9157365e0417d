"""What service and worker say to each other: a request, and a verdict for each, in order.

A frame is four bytes of length and that many of msgpack. The first frame of a worker is a verdict too: OK when it has
loaded its judge and waits for requests, ERROR when it could not.
"""

from dataclasses import dataclass
from typing import IO

import msgspec

from freerun.core import Task
from freerun.rewards.base import Verdict

HEADER_BYTES = 4


@dataclass(frozen=True, slots=True)
class Request:
    task: Task
    text: str


def frame(message: Request | Verdict) -> bytes:
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def read_frame(stream: IO[bytes]) -> bytes | None:
    """The body of the next frame, or None at the end of the stream."""
    header = stream.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        return None
    size = int.from_bytes(header, "big")
    body = stream.read(size)
    return body if len(body) == size else None
