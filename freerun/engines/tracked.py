"""An engine of a run, by name, and what the run knows of it: what it owes, what it has read, whether it is well."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from freerun.core import EngineError, EngineLost, Version
from freerun.core.lost import Losable
from freerun.core.reports import EngineStats, UpdateReport, WeightsHandle
from freerun.engines.base import Completion, Engine, Sampling
from freerun.engines.beginnings import Beginnings
from freerun.engines.refused import Refused

T = TypeVar("T")

SICK_AFTER = 4
"""Requests in a row that an engine fails before it is taken for sick."""
_HEALTH_S = 10.0
"""How long an engine may take to say that it is well."""


class TrackedEngine:
    """Is told when the engine is lost; `failing` is called when it has failed too often, or is found lost."""

    LOOK_S: ClassVar[float] = 5.0
    """How long an engine may take to say how it is doing, which it does between two of its steps; it may take half as
    long to say that it is there, which it does at once."""

    def __init__(self, name: str, engine: Engine, failing: Callable[["TrackedEngine", EngineError], None]) -> None:
        self.name = name
        self.tokens = 0
        """How many at most it has yet to sample for its callers."""
        self.groups = 0
        """How many it was chosen for, and have not ended."""
        self.version: Version = 0
        """What it is known to have: an answer by an older one is not taken."""
        self.looks = 0
        """How often it was looked at, since it last answered a request."""
        self.beginnings = Beginnings()
        self._engine = engine
        self._failing = failing
        self._failed_in_a_row = 0
        self._losable = Losable(EngineLost)
        self._updating = asyncio.Lock()

    def lose(self, why: str) -> None:
        """All that waits for it fails at once with EngineLost."""
        self._losable.lose(f"{self.name} is lost: {why}")

    async def roll_out(self, group: Coroutine[Any, Any, T]) -> T:
        """Await the rollout of a group that this engine was chosen for: it cannot go on without it, whatever the
        rollout makes of its failures."""
        self.groups += 1
        try:
            return await self._unless_lost(group)
        finally:
            self.groups -= 1

    async def generate(self, prompt: list[int], sampling: Sampling, n: int = 1) -> AsyncIterator[Completion]:
        left, oldest = n, self.version
        self.tokens += left * sampling.max_new_tokens
        try:
            async for completion in self._engine.generate(prompt, sampling, n):
                self._check(completion, oldest)
                left -= 1
                self.tokens -= sampling.max_new_tokens
                self._failed_in_a_row = self.looks = 0
                yield completion
        except EngineError as error:
            self._failed(error)
            raise
        finally:
            self.tokens -= left * sampling.max_new_tokens

    async def take(self, handle: WeightsHandle) -> UpdateReport | None:
        """Have it take that version; None if it has it, or a newer one. One at a time: versions only go up."""
        async with self._updating:
            if handle.version <= self.version:
                return None
            report = await self._unless_lost(self._update(handle))
            self.version = handle.version
            self.beginnings.forget()
            return replace(report, engine=self.name)

    async def _update(self, handle: WeightsHandle) -> UpdateReport:
        return await self._engine.update_weights(handle)

    async def look(self) -> EngineStats | None:
        """How it is doing; None where it does not say so and yet answers, by a failure for example. TimeoutError where
        nothing comes from it at all."""
        with suppress(TimeoutError, EngineError):
            async with asyncio.timeout(self.LOOK_S):
                return await self._unless_lost(self._stats())
        with suppress(EngineError):
            async with asyncio.timeout(self.LOOK_S / 2):
                await self._unless_lost(self._health())
        return None

    async def is_lost_within(self, seconds: float) -> bool:
        """Whether it is lost by now, or will be known to be in that time."""
        try:
            await self._unless_lost(asyncio.sleep(seconds))
        except EngineLost:
            return True
        return False

    @property
    def updating(self) -> bool:
        """Whether it takes new weights at the moment."""
        return self._updating.locked()

    async def _stats(self) -> EngineStats:
        return await self._engine.stats()

    async def health(self) -> Version:
        """Raises EngineError where it does not answer. One that was started again has begun with another version."""
        try:
            async with asyncio.timeout(_HEALTH_S):
                version = await self._unless_lost(self._health())
        except TimeoutError:
            raise EngineError(f"{self.name} does not say within {_HEALTH_S:.0f} s that it is well") from None
        if not self.updating:
            self.version = version
        return version

    async def _health(self) -> Version:
        return await self._engine.health()

    async def _unless_lost(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            async with self._losable.unless_lost():
                return await work
        finally:
            work.close()

    def _check(self, completion: Completion, oldest: Version) -> None:
        """An engine that was started again would answer with the model that it began with. An answer's first token is
        its oldest: versions only go up."""
        runs = completion.versions.runs
        if runs and runs[0][0] < oldest:
            self._failed_in_a_row = SICK_AFTER
            raise EngineError(
                f"{self.name} has answered with version {runs[0][0]}, and had {oldest} before: it was started again "
                "or loaded other weights"
            )

    def _failed(self, error: EngineError) -> None:
        """A request that was refused is the request's fault."""
        if isinstance(error, EngineLost):
            self._failing(self, error)
        elif not isinstance(error, Refused):
            self._failed_in_a_row += 1
            if self._failed_in_a_row >= SICK_AFTER:
                self._failed_in_a_row = 0
                self._failing(self, error)
