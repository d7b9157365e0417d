"""Which engine a group of answers goes to: the one that owes the fewest tokens.

All requests of a group go to the same engine, which has the beginnings of its later ones in its cache.
"""

from collections.abc import AsyncIterator, Collection, Sequence

from freerun.core.reports import EngineStats, UpdateReport, WeightsHandle
from freerun.engines.base import Completion, Engine, Sampling


class Router:
    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = [TrackedEngine(engine) for engine in engines]

    def choose(self, but_not: Collection["TrackedEngine"] = ()) -> "TrackedEngine":
        """Rather none of those that have already failed the group, unless there is no other."""
        left = [engine for engine in self._engines if engine not in but_not] or self._engines
        return min(left, key=lambda engine: engine.tokens)


class TrackedEngine:
    """An engine, and how many tokens at most it has yet to sample for its callers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.tokens = 0

    async def generate(self, prompt: list[int], sampling: Sampling, n: int = 1) -> AsyncIterator[Completion]:
        left = n
        self.tokens += left * sampling.max_new_tokens
        try:
            async for completion in self._engine.generate(prompt, sampling, n):
                left -= 1
                self.tokens -= sampling.max_new_tokens
                yield completion
        finally:
            self.tokens -= left * sampling.max_new_tokens

    async def update_weights(self, handle: WeightsHandle) -> UpdateReport:
        return await self._engine.update_weights(handle)

    async def stats(self) -> EngineStats:
        return await self._engine.stats()
