"""The trainer as the controller sees it: a process elsewhere, reached over ZeroMQ."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Any, Self

import msgspec
import zmq
import zmq.asyncio

from freerun.core import Batch, Sample, TrainerError, TrainerLost, Version
from freerun.core.clock import Clock
from freerun.core.lost import Losable
from freerun.core.reports import StepResult, WeightsHandle
from freerun.train.messages import decoded, in_parts, opening, samples_message
from freerun.train.protocol import METHODS, BatchHead, Checkpoint, Copied, GroupHead, Written
from freerun.train.sockets import connect


class RemoteTrainer:
    """A context manager. One request at a time; a second caller waits for the first one's reply.

    Requests are numbered, and replies say which they answer: those to calls that were cancelled are passed over. A
    batch goes group by group, and the loop has its turn after each. `key` is the run's, and needed where the trainer is
    on another machine; `clock` is that machine's.
    """

    def __init__(self, endpoint: str, key: str | None = None, clock: Clock | None = None) -> None:
        self._endpoint, self._key, self._clock = endpoint, key, clock or Clock()
        self._losable = Losable(TrainerLost)
        self._one_at_a_time = asyncio.Lock()
        self._requests = 0

    def __enter__(self) -> Self:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PAIR)
        connect(self._socket, self._endpoint, self._key)
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(linger=0)

    @property
    def is_lost(self) -> bool:
        return self._losable.is_lost

    def lose(self, why: str) -> None:
        """It is gone: the call that waits for it fails at once with TrainerLost, and so does every later one."""
        self._losable.lose(f"the trainer is lost: {why}")

    async def step(self, batch: Batch) -> StepResult:
        """What the tasks are is of no concern to the trainer, and may not be such as msgpack can say."""
        heads = [GroupHead(group.id, group.task.id, group.admitted_at) for group in batch.groups]
        samples = [group.samples for group in batch.groups]
        return self._by_our_clock(await self._call("step", BatchHead(batch.version, heads), samples))

    async def sft(self, examples: list[Sample]) -> StepResult:
        return self._by_our_clock(await self._call("sft", None, in_parts(examples)))

    async def dpo(self, samples: list[Sample], beta: float) -> StepResult:
        return self._by_our_clock(await self._call("dpo", beta, in_parts(samples)))

    async def score(self, samples: list[Sample]) -> list[list[float]]:
        scores: list[list[float]] = await self._call("score", None, in_parts(samples))
        return scores

    async def publish(self) -> WeightsHandle:
        handle: WeightsHandle = await self._call("publish", None)
        return handle

    async def save(self, folder: str) -> None:
        await self._call("save", folder)

    async def checkpoint(self, version: Version, folder: str, control: str) -> Copied:
        with _token(Path(folder)) as token:
            copied: Copied = await self._call("checkpoint", Checkpoint(version, folder, control, token))
        return replace(copied, written=self._written_by_our_clock(copied.written))

    async def written(self) -> Written | None:
        return self._written_by_our_clock(await self._call("written", None))

    def _written_by_our_clock(self, written: Written | None) -> Written | None:
        ours = self._clock.ours
        return written and replace(written, start_s=ours(written.start_s), end_s=ours(written.end_s))

    def _by_our_clock(self, result: StepResult) -> StepResult:
        ours = self._clock.ours
        result.phases = [(name, ours(start_s), ours(end_s)) for name, start_s, end_s in result.phases]
        return result

    async def _call(self, method: str, argument: Any, parts: Sequence[Sequence[Sample]] = ()) -> Any:
        async with self._losable.unless_lost(), self._one_at_a_time:
            self._requests += 1
            await self._socket.send_multipart(opening(self._requests, method, argument, len(parts)))
            for samples in parts:
                await self._socket.send_multipart(samples_message(samples), copy=False)
                await asyncio.sleep(0)
            number, own = b"", str(self._requests).encode()
            while number != own:
                number, status, payload = await self._socket.recv_multipart()
        if status != b"ok":
            kind = TrainerError if status == b"refused" else TrainerLost
            raise kind(*msgspec.msgpack.decode(payload, type=tuple[str, str]))
        return decoded(payload, METHODS[method][1])


@contextmanager
def _token(folder: Path) -> Iterator[str]:
    """The name of a file that is in that folder for now. Where that cannot be, the trainer will say why."""
    token = folder / f".asked-{token_hex(8)}"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        token.touch()
    try:
        yield token.name
    finally:
        with suppress(OSError):
            token.unlink()
