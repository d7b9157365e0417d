"""Requests from controller to trainer as ZeroMQ messages, and their results. Importable without torch, and knows
nothing of sockets.

A request opens with its method, its argument in msgpack, how many messages of samples follow, and its number, which
the reply repeats. Each message of samples is a header in msgpack and one buffer with the tokens, the log-probabilities
and the loss masks of all its samples. So the controller copies the bytes of one group at a time and has a few of them
on their way, and the trainer reads the arrays where they arrived.

A request whose samples stop coming, because its caller was cancelled, is dropped when the next one opens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import numpy as np

from freerun.core import Batch, FinishReason, Group, Sample, Task, TrainerError
from freerun.core.nouns import Logprobs, Returns, VersionRuns
from freerun.train.protocol import METHODS, BatchHead

AT_ONCE = 4
"""Messages on their way, at either end: enough that neither waits for the other, and little memory."""
_SAMPLES = b"samples"
_TOGETHER = 64
"""Samples of a message, where they are of no group."""


class SamplesHeader(msgspec.Struct, array_like=True):
    """What is not in the buffer, one of each a sample. Texts stay with the controller."""

    lengths: list[int]
    finishes: list[FinishReason]
    rewards: list[float | None]
    runs: list[tuple[tuple[int, int], ...]]
    members: list[int | None]
    returns: list[Returns | None]


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
    lengths = [len(sample.tokens) for sample in samples]
    header = SamplesHeader(
        lengths,
        [sample.finish for sample in samples],
        [sample.reward for sample in samples],
        [sample.versions.runs for sample in samples],
        [sample.member for sample in samples],
        [sample.returns for sample in samples],
    )
    total = sum(lengths)
    buffer = np.empty(9 * total, np.uint8)
    if samples:
        np.concatenate([sample.tokens for sample in samples], out=buffer[: 4 * total].view(np.int32))
        np.concatenate(
            [sample.behavior_logprobs for sample in samples], out=buffer[4 * total : 8 * total].view(np.float32)
        )
        np.concatenate([sample.loss_mask for sample in samples], out=buffer[8 * total :].view(np.bool_))
    return [_SAMPLES, msgspec.msgpack.encode(header), buffer.data]


def samples_of(header: memoryview, buffer: memoryview) -> list[Sample]:
    """The arrays are views of the buffer."""
    head = msgspec.msgpack.decode(header, type=SamplesHeader)
    total = sum(head.lengths)
    if len(buffer) != 9 * total:
        raise TrainerError(f"{total} tokens came in {len(buffer)} bytes: there must be nine for each")
    if not head.lengths:
        return []
    ends = np.cumsum(head.lengths)[:-1]
    by_sample = zip(
        np.split(np.frombuffer(buffer, np.int32, total), ends),
        np.split(np.frombuffer(buffer, np.bool_, total, 8 * total), ends),
        np.split(np.frombuffer(buffer, np.float32, total, 4 * total), ends),
        map(VersionRuns, head.runs),
        head.finishes,
        strict=True,
    )
    rewarded = zip(by_sample, head.rewards, head.members, head.returns, strict=True)
    samples = [
        Sample(*parts, reward=reward, member=member, returns=returns) for parts, reward, member, returns in rewarded
    ]
    if any(len(sample.versions) != len(sample.tokens) for sample in samples):
        raise TrainerError("a sample came with versions for more or fewer tokens than it has")
    if any(sample.returns and sum(n for _, n in sample.returns) != len(sample.tokens) for sample in samples):
        raise TrainerError("a sample came with returns for more or fewer tokens than it has")
    return samples


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
        if method in ("sft", "score"):
            return method, [sample for samples in parts for sample in samples]
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
