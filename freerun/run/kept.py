"""The engine processes of a run that trains: each is started again when it ends, on its machine or on the one that
takes its place; and there are more or fewer of them while the run goes on, as it is told.

Consumes the ends of engine processes, and how many engines there should be; produces engines that join the run. Waits
for machines; is unblocked by those that join, and those that the plan did not know get engines, too. An engine that
ends by itself again and again is given up; when all are, the run ends with the cause.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, Protocol

from freerun.core import ConfigError, FreerunError, ProcessDied
from freerun.engines.base import Engine
from freerun.engines.external.ours import check_ours
from freerun.engines.http import HttpEngine
from freerun.machine.machines import Machine
from freerun.machine.processes import Child
from freerun.models.shape import Shape
from freerun.plan.plan import Assignment, Plan, joined_by, one_more
from freerun.run.child import SERVER_KEY
from freerun.run.restarts import Restarts
from freerun.run.starter import StartedEngine, Starter
from freerun.run.wanted import WantedEngines

_TRIES = 6
"""Starts in a row that may fail: half a minute, in which a GPU's memory or a disk may become free."""


class Joined(Protocol):
    """A run that engines join and leave."""

    async def join(self, name: str, engine: Engine) -> None: ...

    def remove(self, name: str, why: str, how: str = ...) -> None: ...


@dataclass(eq=False)
class _Kept:
    """An engine that the run has or had, by the place that the plan gave it."""

    assignment: Assignment
    started: StartedEngine | None = None
    """Its process, while it has one that can be reached."""
    run: Joined | None = None
    """Whom it works for."""
    keeping: "asyncio.Task[None] | None" = None
    why_ended: str | None = None
    """Why we end its process ourselves."""
    stays_out: bool = False
    """It is not started again, unless it is the last one."""

    @property
    def name(self) -> str:
        return self.assignment.process

    @property
    def goes_on(self) -> bool:
        """It runs, or is about to again."""
        return self.keeping is not None and not self.keeping.done()


class KeptEngines:
    """An async context manager, which holds the connections."""

    def __init__(self, starter: Starter, shape: Shape, note: Callable[[str], None]) -> None:
        self._starter, self._shape, self._note = starter, shape, note
        self.given: list[HttpEngine] = []
        """Those that run already."""
        self._stack = AsyncExitStack()
        self._kept: dict[str, _Kept] = {}
        """By name, all that there ever were."""
        self._group: asyncio.TaskGroup | None = None
        """What goes on while engines are kept."""
        self._run: Joined | None = None
        self._tell: Callable[[Mapping[str, str]], None] = lambda machines: None

    async def __aenter__(self) -> "KeptEngines":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def any(self) -> bool:
        """Whether there are processes to start again."""
        return bool(self._kept)

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
        self._kept[assignment.process] = _Kept(assignment, started)
        return await self._connected(started)

    async def keep(
        self,
        run: Joined,
        others: Mapping[str, Joined],
        newcomers: AsyncIterator[Machine],
        wanted: AsyncIterator[WantedEngines],
        tell: Callable[[Mapping[str, str]], None],
    ) -> None:
        """All work for `run`, also those that come later, but for some of the first ones: `others` has whom those work
        for, by name. `tell` is told the machines of all that `run` is to have, by name."""
        self._run, self._tell = run, tell
        async with asyncio.TaskGroup() as self._group:
            for one in self._kept.values():
                self._go(one, others.get(one.name, run))
            self._tell(self._machines(run))
            self._group.create_task(self._follow(wanted, run))
            async for machine in newcomers:
                for assignment in self._engines_on(machine):
                    self._add(assignment, run)

    def restart(self, name: str, why: str, again: bool = True) -> bool:
        """End the process of an engine that is of no use as it is: it is started again, unless told otherwise. False:
        it is not ours to end."""
        one = self._kept.get(name)
        if one is None or one.started is None or self._group is None:
            return False
        if one.why_ended is None:
            one.why_ended, one.stays_out = why, not again
            self._group.create_task(one.started.child.end())
        return True

    async def _follow(self, wanted: AsyncIterator[WantedEngines], run: Joined) -> None:
        """Have as many engines as are wanted."""
        async for now in wanted:
            try:
                self._have(now, run)
            except ConfigError as error:
                self._note(str(error))

    def _have(self, wanted: WantedEngines, run: Joined) -> None:
        """The last ones go first, unless others are named; those that there were come back first."""
        there = self._working_for(run)
        for one in wanted.leave([one.name for one in there]):
            self._remove(self._kept[one], run, f"resources.engines is {wanted.number} now")
        idle = [one for one in self._kept.values() if one.run is run and not one.goes_on]
        for _ in range(wanted.number - len(there)):
            if idle:
                self._go(idle.pop(0), run)
            else:
                self._add(self._one_more(), run)
            self._tell(self._machines(run))

    def _add(self, assignment: Assignment, run: Joined) -> None:
        self._kept[assignment.process] = one = _Kept(assignment)
        self._go(one, run)
        self._note(f"{one.name} is started, beside those that there are")
        self._tell(self._machines(run))

    def _remove(self, one: _Kept, run: Joined, why: str) -> None:
        """Its groups begin afresh elsewhere: whoever takes an engine away wants its place now, and the longest answer
        may take minutes yet."""
        assert one.keeping
        assert self._group
        one.keeping.cancel()
        one.keeping = None
        run.remove(one.name, why, "is removed")
        if one.started:
            self._group.create_task(one.started.child.end())
            one.started = None
        self._tell(self._machines(run))

    def _go(self, one: _Kept, run: Joined) -> None:
        assert self._group
        one.run, one.stays_out = run, False
        one.keeping = self._group.create_task(self._keep(one, run))

    def _working_for(self, run: Joined) -> list[_Kept]:
        return [one for one in self._kept.values() if one.run is run and one.goes_on]

    def _machines(self, run: Joined) -> dict[str, str]:
        return {one.name: one.assignment.machine for one in self._working_for(run)}

    def _engines_on(self, machine: Machine) -> list[Assignment]:
        """Engines for a machine that has joined a run that goes on."""
        if self._starter.config.engine.urls:
            self._note(f"machine {machine.name} has nothing to do: engine.urls names the engines")
            return []
        try:
            return self._planned(joined_by(self._starter.plan, machine))
        except ConfigError as error:
            self._note(f"machine {machine.name} is not used: {error}")
            return []

    def _one_more(self) -> Assignment:
        (added,) = self._planned(one_more(self._starter.plan, self._starter.config.resources))
        return added

    def _planned(self, plan: Plan) -> list[Assignment]:
        """Those that the plan has beyond the one before, which it takes the place of."""
        added = plan.engines[len(self._starter.plan.engines) :]
        environments = {one.process: plan.placement.environment(one.sees) for one in added}
        self._starter = replace(self._starter, plan=plan, environments={**self._starter.environments, **environments})
        return added

    async def _keep(self, one: _Kept, run: Joined) -> None:
        restarts = Restarts(one.name, self._note)
        while True:
            if one.started is not None:
                await one.started.child.wait()
                died, one.started = _end_of(one, one.started.child), None
                run.remove(one.name, died.message)
                if self._is_given_up(one, run, restarts.given_up(died), died):
                    return
            try:
                started = await restarts.again(lambda: self._starter.engine(one.assignment), _TRIES)
            except FreerunError as error:
                self._is_given_up(one, run, True, error)
                return
            one.started, one.stays_out = started, False
            engine = await self._connected(started)
            await _unless_ended(started.child, run.join(one.name, engine))

    def _is_given_up(self, one: _Kept, run: Joined, too_often: bool, died: FreerunError) -> bool:
        """Whether an engine that has ended is not started again. The run ends with its last one; without its evaluator
        it goes on."""
        others = [other for other in self._working_for(run) if other is not one]
        if too_often and not others and run is self._run:
            raise died
        given_up = too_often or (one.stays_out and bool(others))
        if given_up and run is self._run:
            self._tell({other.name: other.assignment.machine for other in others})
        return given_up

    async def _connected(self, started: StartedEngine) -> HttpEngine:
        return await self._stack.enter_async_context(
            HttpEngine(started.url, self._starter.key, clock=started.host.clock)
        )


def _end_of(one: _Kept, child: Child) -> ProcessDied:
    """How it ended, or why we have ended it."""
    why, one.why_ended = one.why_ended, None
    return ProcessDied(f"the {one.name} process was ended: {why}") if why else child.died()


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
