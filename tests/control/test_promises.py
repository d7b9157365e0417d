"""The promises of the controller, as properties: random tasks, durations, failures and policies on a fake clock."""

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freerun.control.config import ControlConfig
from freerun.control.controller import Run, train
from freerun.control.solved import SolvedTasks
from freerun.control.task_queue import TaskQueue
from freerun.control.waiting import together
from freerun.core import Batch, DropReason, EngineError, FreerunError, Group, Sample, Task
from freerun.core.groups import GroupEvent, Position, Stage
from freerun.core.nouns import NOT_SAMPLED
from freerun.core.observer import Observer, Observers
from freerun.core.reports import StepResult, UpdateReport, WeightsHandle
from freerun.core.state import RunState
from freerun.data.stream import TaskStream
from freerun.engines.base import Sampling
from freerun.engines.scripted import Script, ScriptedEngine
from freerun.rewards.base import JudgedSample, JudgeReason, Verdict
from freerun.rollouts.base import GroupRollout
from freerun.rollouts.single_turn import SingleTurn
from freerun.train.protocol import Copied
from tests.fakeclock import run_fast


def text_of(answer: str | JudgedSample) -> str:
    return answer if isinstance(answer, str) else answer.text


class PatientControl(ControlConfig):
    give_up_after: ClassVar[int] = 500
    patience_s: ClassVar[float] = 10_000.0


@dataclass
class World(Observer):
    """Everything a run needs, scripted from one seed. It may begin where another one left off."""

    seed: int
    steps: int = 6
    groups_per_step: int = 2
    group_size: int = 2
    max_staleness: int = 1
    when_stale: Literal["wait", "mask", "drop"] = "wait"
    drop_no_signal: bool = False
    failure_rate: float = 0.0
    judge_failure_rate: float = 0.0
    step_s: float = 3.0
    update_s: float = 0.0
    num_tasks: int | None = None
    num_engines: int = 1
    engine_type: type[ScriptedEngine] = ScriptedEngine
    max_running: int = 1000
    skip_solved: int = 0
    judges: int = 1000
    """Answers judged at the same time."""
    control: type[ControlConfig] = PatientControl
    waiting: int = 0
    begins: RunState = field(default_factory=RunState)
    ready: Sequence[tuple[Position, Group]] = ()
    used: Collection[int] = ()
    run: Run = field(init=False)
    batches: list[Batch] = field(default_factory=list)
    masked: int = 0
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.trainer = ScriptedTrainer(self)
        self.events: list[GroupEvent] = []
        self._judges = asyncio.Semaphore(self.judges)

    async def go(self) -> "World":
        config = self.control(
            steps=self.steps,
            groups_per_step=self.groups_per_step,
            max_staleness=self.max_staleness,
            when_stale=self.when_stale,
            drop_no_signal=self.drop_no_signal,
        )
        self.engines = [self.engine_type(self._script, (i + 1) * self.update_s) for i in range(self.num_engines)]
        named = {f"engine {index}": engine for index, engine in enumerate(self.engines)}
        self.run = Run(
            config, self.group_size, self.seed, self._tasks(), self.rollout(), self, named, self.trainer,
            Observers([self]), self.begins, self.max_running, ready=self.ready, used=self.used,
        )  # fmt: skip
        await self.run.begin(WeightsHandle("scripted", self.begins.version, ""))
        await train(self.run)
        return self

    def rollout(self) -> GroupRollout:
        return SingleTurn(Letters(), Sampling(max_new_tokens=64), self.group_size)

    def _tasks(self) -> TaskQueue:
        """One epoch of `num_tasks`, or endless ones."""
        tasks = [Task(f"task-{index}", "?", [index % 5, 1]) for index in range(self.num_tasks or 10)]
        stream = TaskStream(tasks, seed=self.seed, shuffle=False, epochs=1 if self.num_tasks else None)
        stream.seek(self.begins.position)
        return TaskQueue(stream, self.begins.owed, SolvedTasks(self.skip_solved, resting=self.begins.resting))

    def _script(self, prompt: list[int], seed: int, index: int) -> Script:
        dice = random.Random(f"{self.seed}/{seed}/{index}")
        length = min(64, 1 + int(dice.lognormvariate(1.5, 1.0)))
        fails = dice.randrange(length) if dice.random() < self.failure_rate else None
        return Script(length, dice.uniform(0.05, 0.5), fails)

    async def judge(self, task: Task, text: str) -> Verdict:
        await asyncio.sleep(self.random.uniform(0, 0.3))
        if self.random.random() < self.judge_failure_rate:
            return Verdict(None, JudgeReason.TIMEOUT)
        return Verdict(float(self.random.random() < 0.5), JudgeReason.OK)

    async def judge_all(self, task: Task, answers: Sequence[str | JudgedSample]) -> list[Verdict]:
        return await together(*(self._judge_in_turn(task, text_of(answer)) for answer in answers))

    async def _judge_in_turn(self, task: Task, text: str) -> Verdict:
        self.waiting += 1
        async with self._judges:
            self.waiting -= 1
            return await self.judge(task, text)

    def note(self, text: str) -> None:
        assert "still waiting" not in text, f"stuck: {text}"
        self.notes.append(text)

    def learning(self, batch: Batch, masked_tokens: int) -> None:
        self.masked += masked_tokens

    def updated(self, updates: list[UpdateReport]) -> None:
        """One that was out may have taken it in another way."""
        assert {update.version for update in updates} <= {self.run.version}
        assert len({update.engine for update in updates}) == len(updates)
        assert all(engine.version == self.run.version for engine in self.run.fleet.asked), "a version was missed"

    def group(self, event: GroupEvent) -> None:
        """Evaluates the paper's formula, independently, at every admission."""
        self.events.append(event)
        if event.stage is not Stage.ADMITTED:
            return
        alive = set(self.groups_at(Stage.ADMITTED)) - set(self.groups_at(Stage.DROPPED))
        batch = self.groups_per_step * self.group_size
        submitted = len(alive) * self.group_size + self.begins.version * batch
        assert (submitted - 1) // batch <= event.version + self.max_staleness, "the formula is violated"
        asked = self.run.fleet.asked
        assert all(event.version <= engine.version for engine in asked), "admitted at a version nobody has yet"

    def groups_at(self, stage: Stage) -> list[int]:
        return [event.group for event in self.events if event.stage is stage]

    @property
    def drops(self) -> Counter[DropReason]:
        return Counter(event.reason for event in self.events if event.reason)


class Letters:
    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        return "".join(chr(97 + token) for token in token_ids)


class ScriptedTrainer:
    """Checks every batch at the moment of training."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.version = world.begins.version

    async def step(self, batch: Batch) -> StepResult:
        world = self._world
        assert batch.version == self.version
        for sample in batch.samples:
            for version, trained in zip(sample.versions, sample.loss_mask, strict=True):
                assert version <= self.version
                if trained:
                    assert version != NOT_SAMPLED
                    assert self.version - version <= world.max_staleness, "a trained token is too old"
        world.batches.append(batch)
        await asyncio.sleep(world.random.uniform(0.2, 1.8) * world.step_s)
        self.version += 1
        return StepResult(self.version, weights=await self.publish())

    async def sft(self, examples: list[Sample]) -> StepResult:
        raise AssertionError

    async def dpo(self, samples: list[Sample], beta: float) -> StepResult:
        raise AssertionError

    async def score(self, samples: list[Sample]) -> list[list[float]]:
        raise AssertionError

    async def publish(self) -> WeightsHandle:
        await asyncio.sleep(self._world.random.uniform(0, 0.2))
        return WeightsHandle("scripted", self.version, "")

    async def save(self, folder: str) -> None:
        raise AssertionError

    async def checkpoint(self, version: int, folder: str, control: str) -> Copied:
        raise AssertionError

    async def written(self) -> None:
        raise AssertionError


def audit(world: World) -> Counter[Stage]:
    """Every admitted group ended once, trained or dropped; what the book says is what the trainer saw."""
    admitted = world.groups_at(Stage.ADMITTED)
    ended = Counter(event.group for event in world.events if event.stage.is_end)
    assert len(set(admitted)) == len(admitted)
    assert ended == Counter(admitted), "a group was lost, or ended twice"
    trained = [group.id for batch in world.batches for group in batch.groups]
    assert len(set(trained)) == len(trained), "a group was trained on twice"
    assert trained == world.groups_at(Stage.TRAINED)
    assert world.run.book.open == []
    assert all(engine.running == 0 for engine in world.engines), "a sample still runs"
    return Counter(event.stage for event in world.events)


worlds = st.builds(
    World,
    seed=st.integers(0, 10**9),
    steps=st.integers(1, 8),
    groups_per_step=st.integers(1, 4),
    group_size=st.integers(1, 4),
    max_staleness=st.integers(0, 5),
    when_stale=st.sampled_from(["wait", "mask", "drop"]),
    drop_no_signal=st.booleans(),
    failure_rate=st.sampled_from([0.0, 0.0, 0.2]),
    judge_failure_rate=st.sampled_from([0.0, 0.0, 0.1]),
    step_s=st.sampled_from([0.01, 0.5, 3.0, 20.0]),
    update_s=st.sampled_from([0.0, 0.3, 8.0]),
    num_engines=st.integers(1, 2),
    max_running=st.sampled_from([1, 4, 1000]),
    judges=st.sampled_from([1, 3, 1000]),
)


@settings(max_examples=300, deadline=None)
@given(worlds)
def test_promises_hold(world: World) -> None:
    if world.group_size == 1 and world.drop_no_signal:
        world.drop_no_signal = False  # every group of one is without signal: refused by the config
    run_fast(world.go())
    audit(world)
    assert world.run.load.samples == 0, "load that nobody carries"
    assert len(world.batches) == world.steps
    assert all(len(batch.groups) == world.groups_per_step for batch in world.batches)
    assert [batch.version for batch in world.batches] == list(range(world.steps))
    if world.when_stale == "wait":
        assert world.drops[DropReason.TOO_STALE] == 0
        assert world.masked == 0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.integers(0, 4), st.sampled_from(["wait", "mask", "drop"]), st.integers(1, 23))
def test_data_that_ends_is_used_up(
    seed: int, max_staleness: int, when_stale: Literal["wait", "mask", "drop"], num_tasks: int
) -> None:
    world = World(seed, steps=100, max_staleness=max_staleness, when_stale=when_stale, num_tasks=num_tasks)
    run_fast(asyncio.wait_for(world.go(), 1e6))
    counts = audit(world)
    assert counts[Stage.ADMITTED] == num_tasks
    assert counts[Stage.TRAINED] + counts[Stage.DROPPED] == num_tasks
    if when_stale == "wait":
        assert counts[Stage.TRAINED] == num_tasks


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9), st.floats(0.0, 0.3), st.booleans())
def test_no_staleness_is_the_synchronous_order(seed: int, failure_rate: float, drop_no_signal: bool) -> None:
    """η = 0: batch k holds the k-th run of surviving tasks in data order, every token sampled by version k."""
    world = World(seed, max_staleness=0, failure_rate=failure_rate, drop_no_signal=drop_no_signal)
    run_fast(world.go())
    audit(world)
    trained = [group for batch in world.batches for group in batch.groups]
    assert [g.id for g in trained] == sorted(g.id for g in trained)
    for batch in world.batches:
        for sample in batch.samples:
            assert {v for v in sample.versions if v != NOT_SAMPLED} == {batch.version}


def test_the_paper_alone_would_break_the_bound() -> None:
    """The formula bounds admission, not training: taking whatever is ready first breaks the bound on these worlds."""
    from freerun.control.bound import Selection, Wait

    class TakeWhatIsReady(Wait):
        def select(self, ready, running, version, count):  # type: ignore[no-untyped-def]
            return Selection(take=ready[:count]) if len(ready) >= count else Selection()

    broken = 0
    for seed in range(20):
        world = World(seed, max_staleness=1, step_s=0.5, steps=8)
        original = ControlConfig.bound
        ControlConfig.bound = lambda self: TakeWhatIsReady(self.max_staleness)  # type: ignore[method-assign]
        try:
            run_fast(world.go())
        except FreerunError as error:
            broken += "older than max_staleness" in str(error)
        finally:
            ControlConfig.bound = original  # type: ignore[method-assign]
    assert broken > 0


def test_overlap_is_real() -> None:
    """With room for staleness the same world takes less time: generation goes on while the trainer works."""

    async def duration(max_staleness: int) -> float:
        await World(7, steps=12, max_staleness=max_staleness, step_s=6.0, group_size=4).go()
        return asyncio.get_running_loop().time()

    assert run_fast(duration(4)) < 0.75 * run_fast(duration(0))


def test_the_trainer_does_not_wait_for_engines_to_take_its_version() -> None:
    async def duration(max_staleness: int, update_s: float) -> float:
        world = World(7, steps=12, max_staleness=max_staleness, step_s=30.0, update_s=update_s)
        await world.go()
        return asyncio.get_running_loop().time()

    assert run_fast(duration(4, 10.0)) < run_fast(duration(4, 0.0)) + 1.5 * 10, "the last one is waited for"
    assert run_fast(duration(0, 10.0)) > run_fast(duration(0, 0.0)) + 10 * 10, "where nothing may be stale, it must"


@pytest.mark.parametrize(("update_s", "behind"), [(0.02, 0), (0.2, 1)])
def test_engines_that_take_a_version_quickly_have_it_before_the_next_step(update_s: float, behind: int) -> None:
    """They share a GPU with the trainer, which keeps still so long. It does not wait for slower ones."""

    class Looking(ScriptedTrainer):
        async def step(self, batch: Batch) -> StepResult:
            seen.append(batch.version - min(engine.version for engine in world.engines))
            return await super().step(batch)

    seen: list[int] = []
    world = World(7, steps=12, max_staleness=4, step_s=30.0, update_s=update_s, num_engines=2)
    world.trainer = Looking(world)
    run_fast(world.go())
    assert seen == [0] + [behind] * 11


def test_an_engine_that_cannot_take_a_version_ends_the_run_at_once() -> None:
    class Refusing(ScriptedEngine):
        async def update_weights(self, handle: WeightsHandle) -> UpdateReport:
            await asyncio.sleep(1)
            raise EngineError("no room for the weights")

    world = World(3, max_staleness=4, step_s=1000.0)
    world.engine_type = Refusing
    with pytest.raises(EngineError, match="no room for the weights"):
        run_fast(world.go())
    assert world.run.book.open == []
    assert len(world.batches) == 2, "the next step had begun, and was not waited for"


def test_a_filter_that_rejects_everything_stops_the_run() -> None:
    world = World(3, drop_no_signal=True, group_size=1)
    with pytest.raises(FreerunError, match=r"the last 500 groups had equal rewards each .* look at the reward"):
        run_fast(world.go())
    audit(world)


def test_a_policy_that_has_learned_all_ends_the_run() -> None:
    class Learns(World):
        async def judge(self, task: Task, text: str) -> Verdict:
            solved = self.run.version >= 3
            return Verdict(float(solved or self.random.random() < 0.5), JudgeReason.OK)

    world = Learns(1, steps=1000, drop_no_signal=True, group_size=4, max_staleness=2)
    run_fast(world.go())
    counts = audit(world)
    assert 3 <= len(world.batches) < 10
    assert counts[Stage.DROPPED] < 1000
    (note,) = world.notes
    assert "equal rewards each (the last one: 1): there is nothing left to learn" in note


def test_rare_signal_is_no_reason_to_end() -> None:
    class Rare(World):
        judged_groups = 0

        async def judge_all(self, task: Task, answers: Sequence[str | JudgedSample]) -> list[Verdict]:
            self.judged_groups += 1
            differ = self.run.version == 0 or self.judged_groups % 600 == 0  # where failures end it after 500
            return [Verdict(float(differ and index == 0), JudgeReason.OK) for index in range(len(answers))]

    world = Rare(1, steps=3, drop_no_signal=True, num_tasks=4000)
    run_fast(world.go())
    assert len(world.batches) == 3
    assert max(world.drops.values()) > 1000


def test_failures_in_a_row_stop_the_run() -> None:
    world = World(3, judge_failure_rate=1.0)
    with pytest.raises(FreerunError, match=r"the last 500 groups were all dropped \(the last one: judge_failed\)"):
        run_fast(world.go())
    audit(world)


def test_an_unexpected_failure_ends_the_run_with_its_cause() -> None:
    class Broken(World):
        async def judge(self, task: Task, text: str) -> Verdict:
            raise ZeroDivisionError("the judge's bug")

    world = Broken(1)
    with pytest.raises(ZeroDivisionError, match="the judge's bug"):
        run_fast(world.go())
    audit(world)


def test_cancelling_ends_every_group() -> None:
    world = World(5, steps=1000)

    async def cancelled() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(world.go(), 30)

    run_fast(cancelled())
    counts = audit(world)
    assert counts[Stage.TRAINED] > 0
    assert world.drops[DropReason.RUN_ENDED] > 0
