"""Engines come and go while a run goes on: nothing is lost, nothing is trained on twice, and the bound is kept."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freerun.control.controller import Run, train
from freerun.control.fleet import Fleet
from freerun.control.waiting import background
from freerun.core import Batch, EngineError, EngineLost, FreerunError, Version
from freerun.core.groups import Stage
from freerun.core.observer import Observer, Observers
from freerun.core.reports import UpdateReport, WeightsHandle
from freerun.engines.base import Completion, Sampling
from freerun.engines.scripted import Script, ScriptedEngine
from tests.control.test_promises import World, audit
from tests.fakeclock import run_fast


class Fallible(ScriptedEngine):
    """Remembers what it took; refuses an update, or all requests, while it is told to."""

    def __init__(self, update_s: float = 0.0, length: int = 4) -> None:
        super().__init__(lambda prompt, seed, index: Script(length, 0.5, 0 if self.fails else None), update_s)
        self.took: list[Version] = []
        self.refuses = 0
        self.fails = False

    async def update_weights(self, handle: WeightsHandle) -> UpdateReport:
        if self.refuses:
            self.refuses -= 1
            raise EngineError("the transfer was torn")
        report = await super().update_weights(handle)
        self.took.append(handle.version)
        return report


@dataclass
class Cluster(World):
    """Engines are lost, come back with the model that they began with, and refuse weights, at random."""

    troubles: int = 12
    mean_s: float = 3.0
    seen: list[ScriptedEngine] = field(default_factory=list)

    async def go(self) -> "World":
        self.engines = self.seen
        first = {f"engine {index}": self._engine() for index in range(self.num_engines)}
        config = self.control(
            steps=self.steps,
            groups_per_step=self.groups_per_step,
            max_staleness=self.max_staleness,
            when_stale=self.when_stale,
        )
        self.run = Run(
            config, self.group_size, self.seed, self._tasks(), self.rollout(), self, first, self.trainer,
            Observers([self]), max_running=self.max_running, engines_may_join=True,
        )  # fmt: skip
        await self.run.begin(WeightsHandle("scripted", 0, ""))
        async with background(self._fate(list(first))):
            await train(self.run)
        return self

    async def _fate(self, names: list[str]) -> None:
        """So many troubles, and then peace: a group must once come to its end."""
        async with asyncio.TaskGroup() as joining:
            for _ in range(self.troubles):
                await asyncio.sleep(self.random.expovariate(1 / self.mean_s))
                name, known = self.random.choice(names), [engine.name for engine in self.run.fleet.engines]
                if name in known and self.random.random() < 0.8:
                    self.run.remove(name, "its cable was cut")
                else:  # it may be there: its machine was cut off for so short a time that nobody has noticed
                    joining.create_task(self.run.join(name, self._engine()))
            for name in set(names) - {engine.name for engine in self.run.fleet.engines}:
                joining.create_task(self.run.join(name, self._engine()))
        await asyncio.Event().wait()

    def _engine(self) -> ScriptedEngine:
        world = self

        class Engine(ScriptedEngine):
            async def update_weights(self, handle: WeightsHandle) -> UpdateReport:
                if world.random.random() < world.failure_rate:
                    raise EngineError("the transfer was torn")
                return await super().update_weights(handle)

        self.seen.append(engine := Engine(self._script_of_a_sound_one, self.random.uniform(0, 2) * self.update_s))
        return engine

    def _script_of_a_sound_one(self, prompt: list[int], seed: int, index: int) -> Script:
        script = super()._script(prompt, seed, index)
        return Script(script.length, script.token_s)

    def learning(self, batch: Batch, masked_tokens: int) -> None:
        super().learning(batch, masked_tokens)
        for group in batch.groups:
            assert group.oldest_version >= group.admitted_at, "an engine answered with an older version than promised"
            assert len(group.samples) == self.group_size


clusters = st.builds(
    Cluster,
    seed=st.integers(0, 10**9),
    steps=st.just(1000),
    groups_per_step=st.integers(1, 4),
    group_size=st.integers(1, 4),
    max_staleness=st.integers(0, 4),
    failure_rate=st.sampled_from([0.0, 0.3]),
    step_s=st.sampled_from([0.5, 3.0]),
    update_s=st.sampled_from([0.0, 0.3, 4.0]),
    num_tasks=st.integers(1, 24),
    num_engines=st.integers(1, 4),
    max_running=st.sampled_from([2, 1000]),
    mean_s=st.sampled_from([0.3, 3.0]),
)


@settings(max_examples=100, deadline=None)
@given(clusters)
def test_engines_come_and_go(world: Cluster) -> None:
    run_fast(asyncio.wait_for(world.go(), 1e6))
    counts = audit(world)
    assert counts[Stage.TRAINED] == counts[Stage.ADMITTED] == world.num_tasks, "every task is trained on once"
    samples = [sample for batch in world.batches for sample in batch.samples]
    assert len({id(sample) for sample in samples}) == len(samples) == (world.num_tasks or 0) * world.group_size
    assert world.run.load.samples == 0, "load that nobody carries"
    assert all(engine.tokens == 0 and engine.groups == 0 for engine in world.run.fleet.engines)


class Mortal(ScriptedEngine):
    dead = False

    async def generate(self, prompt: list[int], sampling: Sampling, n: int = 1) -> AsyncIterator[Completion]:
        if self.dead:
            raise EngineError("connection refused")
        async for completion in super().generate(prompt, sampling, n):
            if self.dead:
                raise EngineError("connection reset")
            yield completion


@dataclass
class Dying(Cluster):
    """The only engine dies: its requests fail at once, and a moment later somebody says so; then there is another."""

    async def _fate(self, names: list[str]) -> None:
        for _ in range(5):
            await asyncio.sleep(7.0)
            engine = self.seen[-1]
            assert isinstance(engine, Mortal)
            engine.dead = True
            await asyncio.sleep(0.9)
            self.run.remove(names[0], "it was killed")
            await asyncio.sleep(3.0)
            await self.run.join(names[0], self._engine())
        await asyncio.Event().wait()

    def _engine(self) -> ScriptedEngine:
        self.seen.append(engine := Mortal(lambda prompt, seed, index: Script(2, 0.2)))
        return engine


def test_no_group_fails_for_an_engine_that_has_died_unnoticed() -> None:
    world = Dying(3, steps=1000, num_tasks=24, num_engines=1, failure_rate=0.0)
    run_fast(asyncio.wait_for(world.go(), 1e6))
    counts = audit(world)
    assert len(world.seen) > 2
    assert counts[Stage.TRAINED] == counts[Stage.ADMITTED] == world.num_tasks


class Notes(Observer):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.out: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def engine_out(self, name: str, why: str) -> None:
        self.out.append(name)


def handle(version: Version) -> WeightsHandle:
    return WeightsHandle("scripted", version, "")


def fleet_of(told: Notes, others_may_join: bool = False, **engines: ScriptedEngine) -> Fleet:
    return Fleet(engines, told, 60.0, others_may_join)


def at(seconds: float, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
    async def later() -> Any:
        await asyncio.sleep(seconds)
        return await work

    return asyncio.create_task(later())


def test_one_that_joins_during_a_delivery_has_that_version_and_misses_none() -> None:
    async def go() -> None:
        old, new, told = Fallible(update_s=5.0), Fallible(update_s=1.0), Notes()
        fleet = fleet_of(told, old=old)
        await fleet.deliver(handle(0))
        delivery, joins = asyncio.create_task(fleet.deliver(handle(1))), at(1.0, fleet.join("new", new))
        await joins
        assert (len(fleet), old.version, new.version) == (2, 0, 1), "ahead of the others, never behind"
        await delivery
        reports = await fleet.deliver(handle(2))
        assert (old.took, new.took) == ([1, 2], [1, 2])
        assert [report.engine for report in reports] == ["old", "new"]
        assert told.notes == ["new joins, with version 1"]

    run_fast(go())


def test_one_that_is_slow_to_join_takes_what_was_delivered_meanwhile_too() -> None:
    async def go() -> None:
        old, new = Fallible(), Fallible(update_s=10.0)
        fleet = fleet_of(Notes(), old=old)
        await fleet.deliver(handle(1))
        joins = asyncio.create_task(fleet.join("new", new))
        await at(3.0, fleet.deliver(handle(2)))
        assert len(fleet) == 1, "no delivery waits for it"
        await joins
        assert (len(fleet), new.took) == (2, [1, 2])

    run_fast(go())


def test_a_version_that_is_gone_before_it_has_come_is_passed_over() -> None:
    class Replaced(Fallible):
        async def update_weights(self, handle: WeightsHandle) -> UpdateReport:
            if handle.version == 1:
                await asyncio.sleep(5)
                raise EngineError("version 1 is gone")
            return await super().update_weights(handle)

    async def go() -> None:
        new, told = Replaced(), Notes()
        fleet = fleet_of(told, old=Fallible())
        await fleet.deliver(handle(1))
        joins = asyncio.create_task(fleet.join("new", new))
        await at(1.0, fleet.deliver(handle(2)))
        await joins
        assert (new.took, told.notes) == ([2], ["new joins, with version 2"])

    run_fast(go())


def test_one_that_does_not_take_a_version_is_out_until_it_does() -> None:
    async def go() -> None:
        well, torn, told = Fallible(), Fallible(), Notes()
        changed = asyncio.Event()
        fleet = Fleet({"well": well, "torn": torn}, told, 60.0, changed=changed.set)
        torn.refuses = 3
        async with background(fleet.watch()):
            await fleet.deliver(handle(1))
            assert [engine.name for engine in fleet.asked] == ["well"]
            await fleet.deliver(handle(2))
            changed.clear()
            await changed.wait()
        assert torn.took == [2]
        assert asyncio.get_running_loop().time() == 0.5 + 1 + 2, "pauses grow"
        out, back = told.notes
        assert out == "torn is out, and is looked at again: it did not take version 1: the transfer was torn"
        assert back == "torn is back, with version 2"

    run_fast(go())


@pytest.mark.parametrize("others_may_join", [False, True])
def test_no_engine_takes_a_version(others_may_join: bool) -> None:
    """Where no other can come, the run ends with the cause; else it waits for those that there are to come back."""

    async def go() -> None:
        one, two = Fallible(), Fallible()
        one.refuses = two.refuses = 2
        fleet = fleet_of(Notes(), others_may_join, one=one, two=two)
        async with background(fleet.watch()):
            assert await fleet.deliver(handle(1)) == []
            chosen = await fleet.choose()
            assert chosen.version == 1

    if others_may_join:
        run_fast(go())
    else:
        with pytest.raises(EngineError, match="the transfer was torn"):
            run_fast(go())


def test_a_version_that_is_lost_with_its_trainer_comes_again() -> None:
    """The run does not end by it; whoever is out takes it at once when it is there again."""

    async def go() -> None:
        one, told = Fallible(), Notes()
        one.refuses = 1000
        fleet = Fleet({"one": one}, told, 60.0)
        async with background(fleet.watch()):
            asyncio.get_running_loop().call_later(0.5, fleet.trainer_lost)
            assert await fleet.deliver(handle(1)) == []
            await asyncio.sleep(100)
            one.refuses = 0
            fleet.published_again(handle(1))
            before_s = asyncio.get_running_loop().time()
            assert (await fleet.choose()).version == 1
            assert asyncio.get_running_loop().time() == before_s
            one.refuses = 1000
            with pytest.raises(EngineError, match="the transfer was torn"):
                await fleet.deliver(handle(2))
        assert one.took == [1]

    run_fast(go())


def test_the_only_one_is_looked_at_at_once() -> None:
    """It is well, and fails requests: the run drops groups until it gives up, and does not wait between them."""
    world = World(1, steps=2, failure_rate=1.0)

    async def go() -> float:
        with pytest.raises(FreerunError, match="the last 500 groups were all dropped"):
            await world.go()
        return asyncio.get_running_loop().time()

    assert run_fast(go()) < 5000
    assert "engine 0 is back, with version 0" in world.notes


def test_the_run_ends_when_no_engine_is_left_and_none_can_come() -> None:
    world = World(5, steps=1000, num_engines=2)

    async def cut() -> None:
        for index in range(2):
            await asyncio.sleep(20)
            world.run.remove(f"engine {index}", "its cable was cut")
        await asyncio.sleep(1000)

    async def go() -> None:
        async with background(cut()):
            await world.go()

    with pytest.raises(EngineLost, match="no engine is left: its cable was cut"):
        run_fast(go())
    audit(world)
    assert world.batches


def test_a_group_without_an_engine_waits_and_says_so_once() -> None:
    async def go() -> None:
        told = Notes()
        fleet = fleet_of(told, others_may_join=True)
        chosen = [asyncio.create_task(fleet.choose()) for _ in range(5)]
        await at(130.0, fleet.join("late", Fallible()))
        assert {engine.name for engine in await asyncio.gather(*chosen)} == {"late"}
        assert told.notes[:2] == [f"still waiting for an engine: there is none after {s} s" for s in (60, 120)]
        assert len(told.notes) == 3

    run_fast(go())


def test_the_load_follows_the_engines() -> None:
    async def go() -> None:
        world = World(5, steps=1, num_engines=2, max_running=8, group_size=4)
        await world.go()
        run = world.run
        assert run.max_load == 18
        run.remove("engine 0", "cut")
        assert run.max_load == 9
        await run.join("engine 2", Fallible())
        await run.join("engine 3", Fallible())
        assert run.max_load == 27
        run.max_sessions = 16
        assert run.max_load == 18
        waits = asyncio.create_task(run.load.at_most(lambda: run.max_load - 18))
        run.load.add(1)
        await asyncio.sleep(0)
        run.max_sessions = 10**9
        assert not waits.done()
        await run.join("engine 4", Fallible())
        await asyncio.wait_for(waits, 1)

    run_fast(go())
