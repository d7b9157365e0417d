"""Engines on machines that can be lost: each is started again, on its machine or on the one that takes its place.

Consumes the ends of engine processes; produces engines that join the run. Waits for machines; is unblocked by those
that join, and those that the plan did not know get engines, too. An engine that ends by itself again and again is given
up; when all are, the run ends with the cause.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Protocol

from freerun.core import ConfigError
from freerun.engines.base import Engine
from freerun.engines.external.ours import check_ours
from freerun.engines.http import HttpEngine
from freerun.machine.machines import Machine
from freerun.machine.processes import Child
from freerun.models.shape import Shape
from freerun.plan.plan import Assignment, joined_by
from freerun.run.child import SERVER_KEY
from freerun.run.restarts import Restarts
from freerun.run.starter import StartedEngine, Starter


class Joined(Protocol):
    """A run that engines join and leave."""

    async def join(self, name: str, engine: Engine) -> None: ...

    def remove(self, name: str, why: str) -> None: ...


class KeptEngines:
    """An async context manager, which holds the connections."""

    def __init__(self, starter: Starter, shape: Shape, note: Callable[[str], None]) -> None:
        self._starter, self._shape, self._note = starter, shape, note
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
            await check_ours(assignment.url, key, self._shape)
            given = await self._stack.enter_async_context(HttpEngine(assignment.url, key))
            self.given.append(given)
            return given
        started = await self._starter.engine(assignment)
        self._started[assignment.process] = assignment, started
        return await self._connected(started)

    async def keep(self, runs: Mapping[str, Joined], newcomers: AsyncIterator[Machine]) -> None:
        """`runs` has whom each engine works for, by its name; engines on machines that join later work for the same as
        the first."""
        kept = [(*self._started[name], run) for name, run in runs.items() if name in self._started]
        self._left = len(kept)
        async with asyncio.TaskGroup() as all_of_them:
            for assignment, started, run in kept:
                all_of_them.create_task(self._keep(assignment, started, run))
            async for machine in newcomers:
                for assignment in self._engines_on(machine):
                    self._left += 1
                    all_of_them.create_task(self._keep(assignment, None, next(iter(runs.values()))))

    def _engines_on(self, machine: Machine) -> list[Assignment]:
        """Engines for a machine that has joined a run that goes on."""
        before = self._starter.plan
        if self._starter.config.engine.urls:
            self._note(f"machine {machine.name} has nothing to do: engine.urls names the engines")
            return []
        try:
            plan = joined_by(before, machine)
        except ConfigError as error:
            self._note(f"machine {machine.name} is not used: {error}")
            return []
        added = plan.engines[len(before.engines) :]
        environments = {one.process: plan.placement.environment(one.sees) for one in added}
        self._starter = replace(self._starter, plan=plan, environments={**self._starter.environments, **environments})
        return added

    async def _keep(self, assignment: Assignment, started: StartedEngine | None, run: Joined) -> None:
        name = assignment.process
        restarts = Restarts(name, self._note)
        while True:
            if started is not None:
                await started.child.wait()
                died = started.child.died()
                run.remove(name, died.message)
                if restarts.given_up(died):
                    self._left -= 1
                    if not self._left:
                        raise died
                    return
            started = await restarts.again(lambda: self._starter.engine(assignment))
            engine = await self._connected(started)
            await _unless_ended(started.child, run.join(name, engine))

    async def _connected(self, started: StartedEngine) -> HttpEngine:
        return await self._stack.enter_async_context(
            HttpEngine(started.url, self._starter.key, clock=started.host.clock)
        )


async def _unless_ended(child: Child, joining: Coroutine[Any, Any, None]) -> None:
    """An engine whose machine is cut off while it takes its weights would never have joined."""
    work, end = asyncio.ensure_future(joining), asyncio.ensure_future(child.wait())
    try:
        await asyncio.wait({work, end}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
    finally:
        work.cancel()
        end.cancel()
