"""The trainer as the controller sees it: a process elsewhere, reached over ZeroMQ."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from freerun.core import Batch, Sample, TrainerError, Version
from freerun.core.reports import StepResult, WeightsHandle
from freerun.train.messages import AT_ONCE, in_parts, opening, samples_message
from freerun.train.protocol import METHODS, BatchHead, Checkpoint, Copied, GroupHead


class RemoteTrainer:
    """A context manager. One request at a time; a second caller waits for the first one's reply.

    Requests are numbered, and replies say which they answer: those to calls that were cancelled are passed over. A
    batch goes group by group, and the loop has its turn after each.
    """

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._one_at_a_time = asyncio.Lock()
        self._requests = 0

    def __enter__(self) -> "RemoteTrainer":
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.set_hwm(AT_ONCE)
        self._socket.connect(self._endpoint)
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(linger=0)

    async def step(self, batch: Batch) -> StepResult:
        """What the tasks are is of no concern to the trainer, and may not be such as msgpack can say."""
        heads = [GroupHead(group.id, group.task.id, group.admitted_at) for group in batch.groups]
        samples = [group.samples for group in batch.groups]
        result: StepResult = await self._call("step", BatchHead(batch.version, heads), samples)
        return result

    async def sft(self, examples: list[Sample]) -> StepResult:
        result: StepResult = await self._call("sft", None, in_parts(examples))
        return result

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
        return copied

    async def written(self) -> None:
        await self._call("written", None)

    async def _call(self, method: str, argument: Any, parts: Sequence[Sequence[Sample]] = ()) -> Any:
        async with self._one_at_a_time:
            self._requests += 1
            await self._socket.send_multipart(opening(self._requests, method, argument, len(parts)))
            for samples in parts:
                await self._socket.send_multipart(samples_message(samples), copy=False)
                await asyncio.sleep(0)
            number, own = b"", str(self._requests).encode()
            while number != own:
                number, status, payload = await self._socket.recv_multipart()
        if status == b"error":
            raise TrainerError(*msgspec.msgpack.decode(payload, type=tuple[str, str]))
        return msgspec.msgpack.decode(payload, type=METHODS[method][1])


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
