"""Samples as bytes: a header in msgpack and one buffer with the tokens, the log-probabilities and the loss masks of all
of them, nine bytes a token; behind these which experts each token went through, where that is known; and in the end a
teacher's log-probabilities, where one has read them all. What controller and trainer send each other, and what run.db
keeps of groups that wait.

Texts and turns are not in it: who needs them keeps them beside it.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from freerun.core.nouns import Returns, Sample
from freerun.core.task import FinishReason
from freerun.core.versions import VersionRuns

Buffer = bytes | memoryview


class SamplesHeader(msgspec.Struct, array_like=True):
    """What is not in the buffer, one of each a sample."""

    lengths: list[int]
    finishes: list[FinishReason]
    rewards: list[float | None]
    runs: list[tuple[tuple[int, int], ...]]
    members: list[int | None]
    returns: list[Returns | None]
    widths: list[int] = []
    """Bytes of each token that say which experts it went through."""
    taught: bool = False
    """Whether the buffer ends with a teacher's log-probabilities."""


def packed(samples: Sequence[Sample]) -> tuple[bytes, memoryview]:
    """The header and the buffer."""
    lengths = [len(sample.tokens) for sample in samples]
    teachers = [sample.teacher_logprobs for sample in samples if sample.teacher_logprobs is not None]
    taught = bool(samples) and len(teachers) == len(samples)
    header = SamplesHeader(
        lengths,
        [sample.finish for sample in samples],
        [sample.reward for sample in samples],
        [sample.versions.runs for sample in samples],
        [sample.member for sample in samples],
        [sample.returns for sample in samples],
        [0 if sample.routes is None else sample.routes.shape[1] for sample in samples],
        taught,
    )
    total = sum(lengths)
    routes = [sample.routes.ravel() for sample in samples if sample.routes is not None]
    taught_at = 9 * total + sum(map(len, routes))
    buffer = np.empty(taught_at + (4 * total if taught else 0), np.uint8)
    if samples:
        np.concatenate([sample.tokens for sample in samples], out=buffer[: 4 * total].view(np.int32))
        np.concatenate(
            [sample.behavior_logprobs for sample in samples], out=buffer[4 * total : 8 * total].view(np.float32)
        )
        np.concatenate([sample.loss_mask for sample in samples], out=buffer[8 * total : 9 * total].view(np.bool_))
    if routes:
        np.concatenate(routes, out=buffer[9 * total : taught_at])
    if taught:
        buffer[taught_at:] = np.concatenate(teachers).view(np.uint8)
    return msgspec.msgpack.encode(header), buffer.data


def unpacked(header: Buffer, buffer: Buffer) -> list[Sample]:
    """The arrays are views of the buffer. Raises ValueError for what is not whole (msgspec's errors are such)."""
    head = msgspec.msgpack.decode(header, type=SamplesHeader)
    total = sum(head.lengths)
    widths = head.widths or [0] * len(head.lengths)
    more = [length * width for length, width in zip(head.lengths, widths, strict=True)]
    taught_at, each = 9 * total + sum(more), "thirteen" if head.taught else "nine"
    if len(buffer) != taught_at + (4 * total if head.taught else 0):
        raise ValueError(
            f"{total} tokens came in {len(buffer)} bytes: there must be {each} for each, and {sum(more)} of experts"
        )
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
    routes = [
        rows.reshape(-1, width) if width else None
        for rows, width in zip(
            np.split(np.frombuffer(buffer, np.uint8, sum(more), 9 * total), np.cumsum(more)[:-1]), widths, strict=True
        )
    ]
    rewarded = zip(by_sample, head.rewards, head.members, head.returns, routes, strict=True)
    samples = [
        Sample(*parts, reward=reward, member=member, returns=returns, routes=rows)
        for parts, reward, member, returns, rows in rewarded
    ]
    if head.taught:
        taught = np.frombuffer(bytes(buffer[taught_at:]), np.float32)
        for sample, logprobs in zip(samples, np.split(taught, ends), strict=True):
            sample.teacher_logprobs = logprobs
    if any(len(sample.versions) != len(sample.tokens) for sample in samples):
        raise ValueError("a sample came with versions for more or fewer tokens than it has")
    if any(sample.returns and sum(n for _, n in sample.returns) != len(sample.tokens) for sample in samples):
        raise ValueError("a sample came with returns for more or fewer tokens than it has")
    return samples
