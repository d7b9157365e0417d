"""Exactly once across crashes, as a property: runs cut off at any moment, each going on from the newest checkpoint."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freerun.control.groups import GroupBook
from freerun.control.state import read_state
from freerun.control.task_queue import TaskQueue
from freerun.control.waiting import LAST_STEP_S, background, unbroken
from freerun.core import Batch, ConfigError, DropReason, FreerunError, RewardError, Task
from freerun.core.groups import Position, Stage
from freerun.core.reports import StepResult
from freerun.core.state import RunState
from freerun.data.stream import TaskStream
from freerun.rewards.base import Verdict
from tests.control.test_promises import ScriptedTrainer, World, audit
from tests.fakeclock import run_fast

Ended = list[tuple[str, str]]
"""Task and how it ended: trained, or the reason it was dropped for."""


@dataclass
class Crashing(World):
    """Keeps a checkpoint every so many steps: the state, as JSON, and what had become of which task by then."""

    save_every: int = 1
    before: Ended = field(default_factory=list)
    kept: tuple[str, Ended] = ("", [])

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kept = (self.begins.to_json(), self.before)

    async def settled(self, state: RunState) -> None:
        if state.version % self.save_every == 0:
            self.kept = (state.to_json(), self.ended)

    @property
    def ended(self) -> Ended:
        ends = [e for e in self.events if e.stage.is_end and e.reason is not DropReason.RUN_ENDED]
        return self.before + [(e.task, e.reason or e.stage) for e in ends]

    async def crashes(self, after_s: float) -> tuple[str, Ended] | None:
        """What the crash leaves on the disk; None when the run was over before."""
        going = asyncio.create_task(self.go())
        await asyncio.wait({going}, timeout=after_s)
        if going.done():
            await going
            return None
        kept = self.kept
        going.cancel()
        await asyncio.gather(going, return_exceptions=True)
        return kept


def state_of(text: str) -> RunState:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "control.json"
        file.write_text(text)
        return read_state(file)


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    num_tasks=st.integers(1, 40),
    max_staleness=st.integers(0, 4),
    when_stale=st.sampled_from(["wait", "mask", "drop"]),
    failure_rate=st.sampled_from([0.0, 0.3]),
    judge_failure_rate=st.sampled_from([0.0, 0.3]),
    drop_no_signal=st.booleans(),
    save_every=st.integers(1, 4),
    crashes=st.lists(st.floats(0.0, 60.0), max_size=4),
    sizes=st.lists(st.integers(1, 4), min_size=5, max_size=5),
)
def test_every_task_ends_once_across_crashes_and_the_bound_holds(
    seed: int, num_tasks: int, max_staleness: int, when_stale: Literal["wait", "mask", "drop"], failure_rate: float,
    judge_failure_rate: float, drop_no_signal: bool, save_every: int, crashes: list[float], sizes: list[int],
) -> None:  # fmt: skip
    """The trainer of each world asserts the bound, its ledger the formula. A resumed run may have other batch sizes."""

    def world(begins: RunState, before: Ended, groups_per_step: int) -> Crashing:
        return Crashing(
            seed, 1000, groups_per_step, 2, max_staleness, when_stale, drop_no_signal, failure_rate,
            judge_failure_rate, num_tasks=num_tasks, begins=begins, save_every=save_every, before=before,
        )  # fmt: skip

    now = world(RunState(), [], sizes.pop())
    for after_s in crashes:
        left = run_fast(now.crashes(after_s))
        if left is None:
            break
        now = world(state_of(left[0]), left[1], sizes.pop())
    else:
        run_fast(now.go())
    audit(now)
    owed = [f"task-{place.index}" for place in now.begins.owed]
    admitted = [event.task for event in now.events if event.stage is Stage.ADMITTED]
    assert admitted[: len(owed)] == owed, "what was cut off comes first"
    assert Counter(task for task, _ in now.ended) == Counter(f"task-{i}" for i in range(num_tasks))
    tally = now.run.book.tally
    dropped = {reason.value: count for reason, count in tally.dropped.items() if reason is not DropReason.RUN_ENDED}
    assert Counter(how for _, how in now.ended) == Counter({"trained": tally.trained} | dropped)
    if when_stale == "wait" and not (failure_rate or judge_failure_rate or drop_no_signal):
        assert tally.trained == num_tasks


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 3), st.floats(0.0, 60.0))
def test_without_staleness_a_resumed_run_trains_on_the_same_groups(seed: int, save_every: int, after_s: float) -> None:
    def trained(*worlds: World) -> dict[int, list[tuple[int, str]]]:
        """By version, the later world's word counting."""
        return {b.version: [(g.id, g.task.id) for g in b.groups] for world in worlds for b in world.batches}

    unbroken = Crashing(seed, steps=8, max_staleness=0)
    run_fast(unbroken.go())
    first = Crashing(seed, steps=8, max_staleness=0, save_every=save_every)
    if left := run_fast(first.crashes(after_s)):
        second = Crashing(seed, steps=8, max_staleness=0, begins=state_of(left[0]))
        run_fast(second.go())
        assert trained(first, second) == trained(unbroken)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9), st.floats(0.0, 30.0))
def test_an_interrupted_run_finishes_its_step_so_state_and_trainer_agree(seed: int, after_s: float) -> None:
    class Elsewhere(ScriptedTrainer):
        """In a process of its own: a step that has begun is finished there, whoever still waits for it."""

        async def step(self, batch: Batch) -> StepResult:
            return await asyncio.shield(asyncio.ensure_future(super().step(batch)))

    world = Crashing(seed, steps=10**6, step_s=0.4)
    world.trainer = Elsewhere(world)

    async def interrupted() -> None:
        await world.crashes(after_s)
        await asyncio.sleep(10)

    run_fast(interrupted())
    assert state_of(world.kept[0]).version == world.trainer.version


@pytest.mark.parametrize("again_s", [100.0, None])
def test_a_step_is_given_up_when_the_run_is_interrupted_twice(again_s: float | None) -> None:
    world = Crashing(1, steps=10**6, step_s=1000.0)

    async def cancelled() -> float:
        going = asyncio.create_task(world.go())
        for wait_s in (100.0, again_s):
            await asyncio.wait({going}, timeout=wait_s)
            going.cancel()
        await asyncio.wait({going})
        return asyncio.get_running_loop().time()

    ended = run_fast(cancelled())
    assert ended == pytest.approx(200.0) if again_s else ended > 1000.0


def test_what_was_dealt_and_has_not_ended_is_owed() -> None:
    stream = TaskStream([Task(str(i), "", []) for i in range(3)], seed=0, shuffle=False, epochs=2)
    stream.seek(Position(1, 1))
    tasks, book = TaskQueue(stream, [Position(0, 2), Position(1, 0)]), GroupBook(next_group=7)

    def deal() -> str:
        position, task = next(tasks)
        book.deal(position, task, samples=2)
        return task.id

    assert deal() == "2"
    book.admitted(7, version=0)
    assert deal() == "0"
    assert book.owed + tasks.owed == [Position(0, 2), Position(1, 0)]
    assert book.next_group == 8, "the one that was only dealt is dealt again as the same group"
    book.admitted(8, version=0)
    assert deal() == "1"
    book.drop(7, DropReason.ROLLOUT_FAILED, version=0)
    assert book.owed + tasks.owed == [Position(1, 0), Position(1, 1)]
    assert tasks.position == Position(1, 2)
    assert [task.id for _, task in tasks] == ["2"]


def test_a_state_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    file = tmp_path / "control.json"
    file.write_text('{"version": "three"}')
    with pytest.raises(ConfigError, match=r"control\.json cannot be read"):
        read_state(file)


class JudgeGone(World):
    async def judge(self, task: Task, text: str) -> Verdict:
        if len(self.batches) > 3:
            raise RewardError("the judge is gone")
        return await super().judge(task, text)


@pytest.mark.parametrize("seed", range(5))
def test_a_run_that_fails_in_the_middle_of_a_step_ends_the_step_first(seed: int) -> None:
    """Or there would be no version to save."""
    world = JudgeGone(seed, steps=50, max_staleness=4, step_s=8.0)
    with pytest.raises(RewardError, match="gone"):
        run_fast(world.go())
    assert len(world.batches) == world.run.version == world.trainer.version


def test_a_step_that_fails_while_the_run_ends_is_the_cause() -> None:
    async def fails() -> None:
        await asyncio.sleep(0.5)
        raise ZeroDivisionError

    async def interrupted() -> None:
        step = asyncio.create_task(unbroken(fails(), lambda: 1.0))
        await asyncio.sleep(0.1)
        step.cancel()
        with pytest.raises(ZeroDivisionError):
            await step

    run_fast(interrupted())


def test_a_failure_in_the_background_does_not_wait_for_a_step_that_never_ends() -> None:
    async def fails() -> None:
        await asyncio.sleep(1)
        raise FreerunError("the first cause")

    async def run() -> float:
        with pytest.raises(FreerunError, match="the first cause"):
            async with background(fails()):
                await unbroken(asyncio.sleep(10**6))
        return asyncio.get_running_loop().time()

    assert run_fast(run()) == pytest.approx(1.0 + LAST_STEP_S)
