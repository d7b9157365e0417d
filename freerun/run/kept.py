"""Engines on machines that can be lost: each is started again, on its machine or on the one that takes its place.

Consumes the ends of engine processes; produces engines that join the run. Waits for machines; is unblocked by those
that join. An engine that ends by itself again and again is given up; when all are, the run ends with the cause.
"""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Protocol

from freerun.core import FreerunError, MachineLost
from freerun.engines.base import Engine
from freerun.engines.http import HttpEngine
from freerun.plan.plan import Assignment
from freerun.run.child import SERVER_KEY
from freerun.run.given import check_engine
from freerun.run.starter import StartedEngine, Starter

_DEATHS = 3
"""How often in a row an engine may end soon after it began."""
_SOON_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0


class Joined(Protocol):
    """A run that engines join and leave."""

    async def join(self, name: str, engine: Engine) -> None: ...

    def remove(self, name: str, why: str) -> None: ...


class KeptEngines:
    """An async context manager, which holds the connections."""

    def __init__(self, starter: Starter, vocab_size: int, note: Callable[[str], None]) -> None:
        self._starter, self._vocab_size, self._note = starter, vocab_size, note
        self.given: list[HttpEngine] = []
        """Those that run already."""
        self._stack = AsyncExitStack()
        self._started: dict[str, tuple[Assignment, StartedEngine]] = {}
        self._left = 0

    async def __aenter__(self) -> "KeptEngines":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def start(self, assignment: Assignment) -> HttpEngine:
        """For the first time: what keeps it from starting is raised. One of our own that runs already only has to be
        reached."""
        if assignment.url and self._starter.config.engine.kind == "embedded":
            key = os.environ.get(SERVER_KEY)
            given = await self._stack.enter_async_context(HttpEngine(assignment.url, key))
            await check_engine(given, self._vocab_size)
            self.given.append(given)
            return given
        started = await self._starter.engine(assignment)
        self._started[assignment.process] = assignment, started
        return await self._connected(started)

    async def keep(self, runs: Mapping[str, Joined]) -> None:
        """Never returns, unless all of them are given. `runs` has whom each engine works for, by its name."""
        kept = [(*self._started[name], run) for name, run in runs.items() if name in self._started]
        self._left = len(kept)
        async with asyncio.TaskGroup() as all_of_them:
            for assignment, started, run in kept:
                all_of_them.create_task(self._keep(assignment, started, run))

    async def _keep(self, assignment: Assignment, started: StartedEngine, run: Joined) -> None:
        name, deaths = assignment.process, 0
        while True:
            began_s = time.monotonic()
            await started.child.wait()
            died = started.child.died()
            run.remove(name, died.message)
            soon = time.monotonic() - began_s < _SOON_S and not isinstance(died, MachineLost)
            deaths = deaths + 1 if soon else 0
            if deaths >= _DEATHS:
                self._note(f"{name} has ended {deaths} times in a row and is not started again")
                self._left -= 1
                if not self._left:
                    raise died
                return
            started = await self._again(assignment)
            await run.join(name, await self._connected(started))

    async def _again(self, assignment: Assignment) -> StartedEngine:
        """As soon as its machine is there; until it succeeds, after growing pauses."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return await self._starter.engine(assignment)
            except FreerunError as error:
                self._note(f"{assignment.process} could not be started again: {error}")
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _connected(self, started: StartedEngine) -> HttpEngine:
        return await self._stack.enter_async_context(
            HttpEngine(started.url, self._starter.key, clock=started.host.clock)
        )
