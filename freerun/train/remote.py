"""The trainer as the controller sees it: a process elsewhere, reached over ZeroMQ."""

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from freerun.core import Batch, Sample, Task, TrainerError, Version
from freerun.core.reports import StepResult, WeightsHandle
from freerun.train.protocol import METHODS, Checkpoint


class RemoteTrainer:
    """A context manager. One request at a time; a second caller waits for the first one's reply.

    The reply to a call that was cancelled is still owed, and is passed over by the next call.
    """

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._one_at_a_time = asyncio.Lock()
        self._owed = 0

    def __enter__(self) -> "RemoteTrainer":
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.connect(self._endpoint)
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(linger=0)

    async def step(self, batch: Batch) -> StepResult:
        """What the tasks are is of no concern to the trainer, and may not be such as msgpack can say."""
        bare = [replace(group, task=Task(group.task.id, "", [])) for group in batch.groups]
        result: StepResult = await self._call("step", replace(batch, groups=bare))
        return result

    async def sft(self, examples: list[Sample]) -> StepResult:
        result: StepResult = await self._call("sft", examples)
        return result

    async def score(self, samples: list[Sample]) -> list[list[float]]:
        scores: list[list[float]] = await self._call("score", samples)
        return scores

    async def publish(self) -> WeightsHandle:
        handle: WeightsHandle = await self._call("publish", None)
        return handle

    async def save(self, folder: str) -> None:
        await self._call("save", folder)

    async def checkpoint(self, version: Version, folder: str, control: str) -> None:
        await self._call("checkpoint", Checkpoint(version, folder, control))

    async def written(self) -> None:
        await self._call("written", None)

    async def _call(self, method: str, argument: Any) -> Any:
        async with self._one_at_a_time:
            await self._socket.send_multipart([method.encode(), msgspec.msgpack.encode(argument)])
            self._owed += 1
            while self._owed:
                status, payload = await self._socket.recv_multipart()
                self._owed -= 1
        if status == b"error":
            raise TrainerError(*msgspec.msgpack.decode(payload, type=tuple[str, str]))
        return msgspec.msgpack.decode(payload, type=METHODS[method][1])
