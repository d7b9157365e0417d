"""An engine that follows a script, for tests and simulations: real timing and stamping, no model.

It keeps an engine's promises (each token is stamped with the version in place when it was sampled; an update falls
between two tokens) on whatever clock the event loop has.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from freerun.core import EngineError, FinishReason, Version
from freerun.core.reports import EngineStats, UpdateReport, WeightsHandle
from freerun.engines.base import Completion, Sampling


@dataclass(slots=True, frozen=True)
class Script:
    """How one answer goes: a token every `token_s` seconds, `length` of them, or a failure after `fails_after`."""

    length: int
    token_s: float
    fails_after: int | None = None


class ScriptedEngine:
    def __init__(self, script: Callable[[list[int], int, int], Script], update_s: float = 0.0) -> None:
        """`script(prompt, seed, index)` decides each answer. New weights take `update_s` to fetch."""
        self._script, self._update_s = script, update_s
        self.version: Version = 0
        self.running = 0
        self.tokens = 0

    async def generate(self, prompt: list[int], sampling: Sampling, n: int = 1) -> AsyncIterator[Completion]:
        answers = [asyncio.ensure_future(self._answer(prompt, sampling.seed, index)) for index in range(n)]
        try:
            for answer in asyncio.as_completed(answers):
                yield await answer
        finally:
            for pending in answers:
                pending.cancel()
            await asyncio.gather(*answers, return_exceptions=True)

    async def _answer(self, prompt: list[int], seed: int, index: int) -> Completion:
        script = self._script(prompt, seed, index)
        versions: list[Version] = []
        self.running += 1
        try:
            while len(versions) < script.length:
                if len(versions) == script.fails_after:
                    raise EngineError("the script failed this answer")
                await asyncio.sleep(script.token_s)
                versions.append(self.version)
        finally:
            self.running -= 1
        self.tokens += script.length
        tokens = [1 + (seed + index + position) % 7 for position in range(script.length)]
        return Completion(index, tokens, [-1.0] * script.length, versions, FinishReason.STOP)

    async def update_weights(self, handle: WeightsHandle) -> UpdateReport:
        if handle.version <= self.version:
            raise EngineError(f"versions only go up: {handle.version} after {self.version}")
        await asyncio.sleep(self._update_s)
        self.version = handle.version
        return UpdateReport(handle.version, 0.0, 0)

    async def stats(self) -> EngineStats:
        return EngineStats(self.version, self.running, 0, self.tokens, 0.0)

    async def health(self) -> Version:
        return self.version
