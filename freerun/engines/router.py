"""Which engine a group of answers goes to.

The one for which the fewest tokens are to be computed first: those that it owes to others, and those of the prompt that
it has not read before. So prompts that begin alike, such as a task that is asked again or many tasks behind one long
system prompt, go where that beginning was read, unless that engine owes more than the least loaded by more tokens than
are saved there. (A token of a prompt costs less than one that is sampled, and an engine that owes has not yet sampled
the most it may: both count as one.) Among equals, the one with the fewest groups.

All requests of a group go to the same engine, which has the beginnings of its later ones in its cache.
"""

import asyncio
from collections.abc import Collection, Sequence

from freerun.engines.beginnings import digests
from freerun.engines.tracked import TrackedEngine


class Router:
    """The engines that may be asked at the moment, by name. `choose` waits while there is none, and is unblocked by
    `add`."""

    def __init__(self) -> None:
        self._engines: dict[str, TrackedEngine] = {}
        self._some = asyncio.Event()

    def __len__(self) -> int:
        return len(self._engines)

    def __contains__(self, engine: TrackedEngine) -> bool:
        return self._engines.get(engine.name) is engine

    @property
    def engines(self) -> list[TrackedEngine]:
        return list(self._engines.values())

    def add(self, engine: TrackedEngine) -> None:
        self._engines[engine.name] = engine
        self._some.set()

    def take_out(self, engine: TrackedEngine) -> None:
        """Nothing more is asked of it. What it was asked for already may still come."""
        if engine in self:
            del self._engines[engine.name]
        if not self._engines:
            self._some.clear()

    async def choose(self, prompt: Sequence[int] = (), but_not: Collection[TrackedEngine] = ()) -> TrackedEngine:
        """For a group whose first request begins with this prompt. Rather none of those that have already failed the
        group, unless there is no other."""
        while not self._engines:
            await self._some.wait()
        beginning = digests(prompt)
        left = [engine for engine in self._engines.values() if engine not in but_not] or self.engines
        chosen = min(left, key=lambda one: (one.tokens - one.beginnings.known(beginning), one.groups))
        chosen.beginnings.read(beginning)
        return chosen
