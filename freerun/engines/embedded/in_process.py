"""The engine in this process, for notebooks, tests and experiments: no server, no other process.

It is an `Engine` as any other to whoever awaits it, and answers at once to whoever does not (`answer_all`). Weights
come by a handle, or straight from a learner beside it (`swap_weights`).
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Self

from torch import Tensor

from freerun.core import EngineError, Version
from freerun.core.reports import EngineStats, UpdateReport, WeightsHandle
from freerun.engines.base import Completion, Sampling
from freerun.engines.config import EngineConfig
from freerun.engines.embedded.engine import Detokenise, EmbeddedEngine
from freerun.engines.embedded.load import load_for_engine
from freerun.models.decoder import Decoder
from freerun.models.tokenizer import has_tokenizer, load_tokenizer
from freerun.weights.subscribe import AnySubscriber

Request = tuple[list[int], Sampling, int]
"""A prompt, how to sample, and how many answers."""


class _Waiting:
    """Those who await answers in one event loop. A script may run several loops, one after another."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.turn = asyncio.Lock()
        """Whoever has it may touch the engine."""
        self.ended: dict[str, asyncio.Queue[Completion | EngineError]] = {}
        self.stepping: asyncio.Task[None] | None = None


class InProcessEngine:
    """Consumes requests; produces answers as they end. Whoever awaits one waits for steps of the engine, which run in a
    thread while there is work; requests that are awaited at the same time are answered together."""

    def __init__(
        self, decoder: Decoder, config: EngineConfig | None = None, detokenise: Detokenise | None = None
    ) -> None:
        """`detokenise` turns tokens into text, for stop strings."""
        self.decoder = decoder
        self._engine = EmbeddedEngine(decoder, config or EngineConfig(), detokenise)
        self._engine.warm_up()
        self._subscriber = AnySubscriber()
        self._ids = count()
        self._last: _Waiting | None = None

    @classmethod
    def from_folder(cls, folder: Path | str, config: EngineConfig | None = None) -> Self:
        """Load a Hugging Face model folder, onto a GPU if there is one."""
        path, config = Path(folder), config or EngineConfig()
        detokenise = load_tokenizer(path).decode if has_tokenizer(path) else None
        return cls(load_for_engine(path, config), config, detokenise)

    @property
    def version(self) -> Version:
        return self._engine.version

    def answer_all(self, requests: Sequence[Request]) -> list[list[Completion]]:
        """The answers to each request, by their index, all sampled together. Returns when the last has ended."""
        ids = [self._submit(*request) for request in requests]
        found: dict[str, list[Completion]] = {id: [] for id in ids}
        while self._engine.has_work:
            for id, answer in self._engine.step():
                found[id].append(answer.completion)
        return [sorted(found[id], key=lambda completion: completion.index) for id in ids]

    async def generate(self, prompt: list[int], sampling: Sampling, n: int = 1) -> AsyncIterator[Completion]:
        waiting = self._waiting()
        async with waiting.turn:
            id = self._submit(prompt, sampling, n)
        ended = waiting.ended[id] = asyncio.Queue()
        if waiting.stepping is None or waiting.stepping.done():
            waiting.stepping = asyncio.create_task(self._step_while_there_is_work(waiting))
        try:
            for _ in range(n):
                completion = await ended.get()
                if isinstance(completion, EngineError):
                    raise completion
                yield completion
        finally:
            del waiting.ended[id]
            async with waiting.turn:
                self._engine.cancel(id)

    async def update_weights(self, handle: WeightsHandle) -> UpdateReport:
        tensors = await asyncio.to_thread(lambda: self._engine.stage(lambda: self._subscriber.fetch(handle)))
        async with self._waiting().turn:
            report = self._engine.update_weights(handle.version, tensors)
            self._subscriber.confirm(handle)
        return report

    def swap_weights(self, version: Version, tensors: Mapping[str, Tensor]) -> UpdateReport:
        """Take these, between two steps: `engine.swap_weights(learner.version, learner.policy.tensors())`. Not while
        answers are awaited."""
        return self._engine.update_weights(version, tensors)

    async def stats(self) -> EngineStats:
        engine = self._engine
        return EngineStats(
            version=engine.version,
            running=engine.running,
            waiting=engine.waiting,
            tokens=engine.tokens,
            idle_s=0.0,
            prompt_tokens=engine.prompt_tokens,
            reused_tokens=engine.reused_tokens,
        )

    async def health(self) -> Version:
        return self.version

    def _submit(self, prompt: list[int], sampling: Sampling, n: int) -> str:
        id = str(next(self._ids))
        self._engine.submit(id, prompt, sampling, n)
        return id

    def _waiting(self) -> _Waiting:
        loop = asyncio.get_running_loop()
        if self._last is None or self._last.loop is not loop:
            self._last = _Waiting(loop)
        return self._last

    async def _step_while_there_is_work(self, waiting: _Waiting) -> None:
        while self._engine.has_work:
            async with waiting.turn:
                try:
                    ended = await asyncio.to_thread(self._engine.step)
                except EngineError as error:
                    for answers in waiting.ended.values():
                        answers.put_nowait(error)
                    return
            for id, answer in ended:
                if id in waiting.ended:
                    waiting.ended[id].put_nowait(answer.completion)
