"""The engines of a run, which may come and go while it goes on.

An engine is in one of three places: it is asked (the router has it), it is out (it failed, and is looked at again after
growing pauses), or it is gone. Versions only go up, and whoever is asked has the version that the run has delivered, or
a newer one:

- `deliver` notes the newest version first, then brings it to those that are asked. One that fails it is out.
- `join`, and a look at one that is out, bring an engine the newest version there is; if it is still the newest when the
  engine has it, it is asked from that moment on. Between the two nothing is awaited, so `deliver` misses none.

A trainer that dies takes with it what it had published, and publishes its newest version again when it is back: an
engine that could not fetch it is out until then.

Consumes versions, and engines that come or are lost; produces engines to ask. `choose` waits while there is none, and
is unblocked by one that joins or comes back. `watch` fails when none is left and none can come.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from freerun.control.engine_health import EngineHealth
from freerun.control.waiting import patiently, together
from freerun.core import Batch, EngineError, EngineLost
from freerun.core.observer import Observer
from freerun.core.reports import EngineStats, StepResult, UpdateReport, WeightsHandle
from freerun.engines.base import Engine
from freerun.engines.router import Router
from freerun.engines.tracked import SICK_AFTER, TrackedEngine

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_LAST_WORDS_S = 1.0
"""An engine that cannot fetch a version, since the trainer has died, may know that a moment before we do."""


def cannot_restart(name: str, why: str, again: bool) -> bool:
    """Where engines are nobody's to end."""
    return False


class Fleet:
    def __init__(
        self,
        engines: Mapping[str, Engine],
        observer: Observer,
        patience_s: float,
        others_may_join: bool = False,
        changed: Callable[[], None] = lambda: None,
        restart: Callable[[str, str, bool], bool] = cannot_restart,
    ) -> None:
        """`changed` is called when there are more or fewer engines to ask; `restart` ends the process of one that hangs
        or is sick, which comes back by `join`, unless told otherwise; false where it cannot."""
        self._observer, self._patience_s = observer, patience_s
        self._others_may_join = others_may_join
        self._changed = changed
        self._restart = restart
        self._health = EngineHealth()
        self._router = Router()
        self._all: dict[str, TrackedEngine] = {}
        """Those that are asked, are out, or about to join."""
        self._out: set[TrackedEngine] = set()
        self.latest: dict[str, EngineStats] = {}
        """What each last told of itself."""
        self._newest: WeightsHandle | None = None
        self._trainer_lost, self._published_again = asyncio.Event(), asyncio.Event()
        self._events: asyncio.Queue[TrackedEngine | str] = asyncio.Queue()
        """For `watch`: an engine that is out, or why one is gone."""
        self._waits_aloud = False
        for name, engine in engines.items():
            self._router.add(self._known(name, engine))

    def __len__(self) -> int:
        """How many can be asked."""
        return len(self._router)

    @property
    def asked(self) -> list[TrackedEngine]:
        """Those that can be asked at the moment."""
        return self._router.engines

    @property
    def engines(self) -> list[TrackedEngine]:
        """All of them, also those that are out."""
        return list(self._all.values())

    async def join(self, name: str, engine: Engine) -> None:
        """One more, or one that is back: it is asked as soon as it has the newest version. One that cannot take it is
        looked at again."""
        if name in self._all:
            self.remove(name, "another one has come in its place")
        joining = self._known(name, engine)
        try:
            await self._ask_again(joining, "joins")
        except EngineLost as error:
            self._failing(joining, error)
        except EngineError as error:
            self._take_out(joining, str(error))

    def remove(self, name: str, why: str, how: str = "is lost") -> None:
        """It is gone: all that waits for it fails at once with EngineLost. Nothing happens where it is not known."""
        if engine := self._all.pop(name, None):
            self._router.take_out(engine)
            self._out.discard(engine)
            self._observer.note(f"{name} {how}, and the {engine.groups} groups it had begin afresh: {why}")
            engine.lose(why)
            self._gone(engine, f"{how.removeprefix('is ')}: {why}", why)

    async def deliver(self, handle: WeightsHandle) -> list[UpdateReport]:
        """Bring a version to all that are asked. Fails only where every engine does, no other may come, and the version
        does not come again either."""
        if self._newest is None:
            for engine in self.asked:
                self._health.began(engine.name, handle.version)
        self._newest = handle
        failures: list[EngineError] = []

        async def take(engine: TrackedEngine) -> UpdateReport | None:
            try:
                return await engine.take(handle)
            except EngineLost as error:
                self._failing(engine, error)
            except EngineError as error:
                failures.append(error)
                self._take_out(engine, f"it did not take version {handle.version}: {error}")
            return None

        taken = await together(*(take(engine) for engine in self.asked))
        all_failed = failures and len(failures) == len(self._all) and not self._others_may_join
        if all_failed and not await self._comes_again(handle):
            raise failures[0]
        return [report for report in taken if report]

    def trainer_lost(self) -> None:
        """It is started again; what it has published may not be there any more."""
        self._trainer_lost.set()

    def published_again(self, handle: WeightsHandle) -> None:
        """The newest version can be had by that handle, and no longer by the one before. Those that are out are looked
        at."""
        self._newest = handle
        self._trainer_lost.clear()
        self._published_again.set()
        self._published_again = asyncio.Event()

    async def _comes_again(self, handle: WeightsHandle) -> bool:
        """Whether a version that nobody could fetch will be published again, or has been meanwhile."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._trainer_lost.wait(), _LAST_WORDS_S)
        return self._trainer_lost.is_set() or self._newest is not handle

    async def poll(self) -> None:
        """Look at all, also those that are out or about to join; tell how those that are asked are doing. One that
        hangs, or is slow, is ended and started again."""
        await together(*(self._look(engine) for engine in self.engines))
        for name, why in self._health.slow(_now_s()).items():
            self._sick(name, why)

    async def _look(self, engine: TrackedEngine) -> None:
        stats, wrong = await looked_at(engine, self._health)
        if stats and engine in self._router:
            self.latest[engine.name] = stats
            self._observer.engine(engine.name, stats)
        if wrong and self._knows(engine):
            self._health.forget(engine.name)
            self._end(engine, wrong)

    def compared(self, batch: Batch, result: StepResult) -> None:
        """A step is done: engines whose log-probabilities are not the trainer's are ended and started again."""
        for name, why in self._health.compared(batch, result).items():
            self._sick(name, why)

    def _sick(self, name: str, why: str) -> None:
        """Start it again, unless that did not help before; never the last one that can be asked."""
        engine = self._all.get(name)
        if engine not in self.asked or len(self) < 2:
            return
        self._health.forget(name)
        again = self._health.may_go_on(name, _now_s())
        self._end(engine, f"{why}; it {'is started again' if again else 'was so before, and stays out'}", again)

    def _end(self, engine: TrackedEngine, why: str, again: bool = True) -> None:
        """Removes an engine that is started again, or is not to come back; any other is taken out until it is well."""
        if self._restart(engine.name, why, again) or not again:
            self.remove(engine.name, why, "is ended")
        else:
            self._take_out(engine, why)

    async def idle_s(self) -> dict[str, float]:
        """How long each has had nothing to do so far."""
        engines = self.asked
        every = await together(*(looked_at(engine, self._health) for engine in engines))
        return {engine.name: stats.idle_s for engine, (stats, _) in zip(engines, every, strict=True) if stats}

    async def choose(self, prompt: Sequence[int] = (), but_not: Collection[TrackedEngine] = ()) -> TrackedEngine:
        """See the router. Where many groups wait for an engine, one says so."""
        chosen = self._router.choose(prompt, but_not)
        if self._router or self._waits_aloud:
            return await chosen
        self._waits_aloud = True
        try:
            return await patiently(chosen, "an engine: there is none", self._patience_s, self._observer.note)
        finally:
            self._waits_aloud = False

    async def watch(self) -> None:
        """Look at those that are out until they are back. Never returns; fails when no engine is left and none can
        come."""
        async with asyncio.TaskGroup() as looks:
            while True:
                event = await self._events.get()
                if isinstance(event, TrackedEngine):
                    looks.create_task(self._look_at(event))
                elif not self._all and not self._others_may_join:
                    raise EngineLost(f"no engine is left: {event}")

    async def _look_at(self, engine: TrackedEngine) -> None:
        """At once where there is no other, and then after growing pauses, which only an answer makes short again."""
        if self._router:
            await self._pause(engine.looks)
        while engine in self._out:
            engine.looks += 1
            try:
                await self._ask_again(engine, "is back")
            except EngineLost as error:
                self._failing(engine, error)
            except EngineError as error:
                self._observer.engine_out(engine.name, f"out: {error}")
                await self._pause(engine.looks)

    async def _pause(self, looks: int) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._published_again.wait(), _pause_s(looks))

    async def _ask_again(self, engine: TrackedEngine, how: str) -> None:
        """Bring it the newest version, and ask it from then on."""
        await engine.health()
        while (newest := self._newest) and engine.version < newest.version:
            try:
                await engine.take(newest)
            except EngineError:
                if self._newest is newest or not self._knows(engine):
                    raise
                # else a newer one took its place before all of it had come
        if self._knows(engine):
            if not self._router:
                self._observer.doing("controller", "has an engine again")
            self._router.add(engine)
            self._out.discard(engine)
            self._health.began(engine.name, engine.version)
            self._observer.note(f"{engine.name} {how}, with version {engine.version}")
            self._changed()

    def _known(self, name: str, engine: Engine) -> TrackedEngine:
        self._all[name] = known = TrackedEngine(name, engine, self._failing)
        return known

    def _knows(self, engine: TrackedEngine) -> bool:
        """Another one may have come by the same name."""
        return self._all.get(engine.name) is engine

    def _failing(self, engine: TrackedEngine, error: EngineError) -> None:
        if isinstance(error, EngineLost):
            if self._knows(engine):
                self.remove(engine.name, str(error))
        elif engine in self._router:
            self._take_out(engine, f"it failed {SICK_AFTER} requests in a row: {error}")

    def _take_out(self, engine: TrackedEngine, why: str) -> None:
        if self._knows(engine) and engine not in self._out:
            self._router.take_out(engine)
            self._out.add(engine)
            self._observer.note(f"{engine.name} is out, and is looked at again: {why}")
            self._gone(engine, f"out: {why}", engine)

    def _gone(self, engine: TrackedEngine, said: str, event: TrackedEngine | str) -> None:
        """It is asked nothing more."""
        self._health.forget(engine.name)
        self._observer.engine_out(engine.name, said)
        if not self._router:
            self._observer.doing("controller", f"waits for an engine: {engine.name} is {said}")
        self._events.put_nowait(event)
        self._changed()


def _pause_s(looks: int) -> float:
    return float(min(_FIRST_PAUSE_S * 2 ** min(looks, 16), _LONGEST_PAUSE_S))


def _now_s() -> float:
    return asyncio.get_running_loop().time()


async def looked_at(engine: TrackedEngine, health: EngineHealth) -> tuple[EngineStats | None, str | None]:
    """How it is doing, if it says so, and what is wrong with it, if it hangs."""
    try:
        stats = await engine.look()
    except TimeoutError:
        return None, health.unheard(engine.name)
    if stats is None:
        return None, health.evades(engine.name, _now_s(), engine.updating)
    return stats, health.heard(engine.name, stats, _now_s(), engine.updating)
