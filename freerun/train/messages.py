"""Requests from controller to trainer as ZeroMQ messages, and their results. Importable without torch, and knows
nothing of sockets.

A request opens with its method, its argument in msgpack, how many messages of samples follow, and its number, which
the reply repeats. Each message of samples is a header and one buffer with what its samples have by token
(`core/packed.py`). So the controller copies the bytes of one group at a time and has a few of them on their way, and
the trainer reads the arrays where they arrived. Texts stay with the controller.

A request whose samples stop coming, because its caller was cancelled, is dropped when the next one opens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import numpy as np

from freerun.core import Batch, Group, Sample, Task, TrainerError
from freerun.core.nouns import Logprobs
from freerun.core.packed import packed, unpacked
from freerun.train.protocol import METHODS, BatchHead, Preferences

AT_ONCE = 4
"""Messages on their way, at either end: enough that neither waits for the other, and little memory."""
_SAMPLES = b"samples"
_TOGETHER = 64
"""Samples of a message, where they are of no group."""


def encoded(result: Any) -> bytes:
    """What a method gave, arrays of floats as their bytes."""
    return msgspec.msgpack.encode(result, enc_hook=_bytes_of)


def decoded(payload: bytes, kind: Any) -> Any:
    return msgspec.msgpack.decode(payload, type=kind, dec_hook=_array_of)


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, np.ndarray):
        return value.astype(np.float32, copy=False).tobytes()
    raise NotImplementedError(f"a result has a {type(value).__name__}, which msgpack cannot say")


def _array_of(_: type, data: bytes) -> Logprobs:
    return np.frombuffer(data, np.float32)


def opening(number: int, method: str, argument: Any, num_messages: int) -> list[bytes]:
    return [
        method.encode(),
        msgspec.msgpack.encode(argument),
        msgspec.msgpack.encode(num_messages),
        str(number).encode(),
    ]


def in_parts(samples: Sequence[Sample]) -> list[Sequence[Sample]]:
    return [samples[start : start + _TOGETHER] for start in range(0, len(samples), _TOGETHER)]


def samples_message(samples: Sequence[Sample]) -> list[bytes | memoryview]:
    return [_SAMPLES, *packed(samples)]


def samples_of(header: memoryview, buffer: memoryview) -> list[Sample]:
    """The arrays are views of the buffer."""
    try:
        return unpacked(header, buffer)
    except ValueError as error:
        raise TrainerError(str(error)) from None


class Frame(Protocol):
    """One of a message, as pyzmq gives it uncopied."""

    @property
    def bytes(self) -> bytes: ...
    @property
    def buffer(self) -> memoryview: ...


@dataclass(slots=True)
class Received:
    """A request that has come whole."""

    opening: Sequence[Frame]
    parts: list[Sequence[Frame]] = field(default_factory=list)

    @property
    def number(self) -> bytes:
        return self.opening[3].bytes

    def decoded(self) -> tuple[str, Any]:
        """The method, and what it is to be called with."""
        method = self.opening[0].bytes.decode()
        argument = msgspec.msgpack.decode(self.opening[1].buffer, type=METHODS[method][0])
        parts = [samples_of(header.buffer, buffer.buffer) for _, header, buffer in self.parts]
        if isinstance(argument, BatchHead):
            groups = [
                Group(head.id, Task(head.task, "", []), samples, head.admitted_at)
                for head, samples in zip(argument.groups, parts, strict=True)
            ]
            return method, Batch(argument.version, groups)
        samples = [sample for samples in parts for sample in samples]
        if method == "dpo":
            return method, Preferences(samples, argument)
        if method in ("sft", "score"):
            return method, samples
        return method, argument


def receive(next_message: Callable[[], Sequence[Frame]]) -> Received:
    """Wait for a request, and for all of its samples."""
    request = Received(next_message())
    while len(request.parts) < msgspec.msgpack.decode(request.opening[2].buffer, type=int):
        frames = next_message()
        if frames[0].bytes == _SAMPLES:
            request.parts.append(frames)
        else:
            request = Received(frames)
    return request
