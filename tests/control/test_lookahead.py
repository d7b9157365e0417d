"""How far ahead of the trainer the controller runs."""

import asyncio
from dataclasses import dataclass, field

import pytest

from freerun.control.lookahead import LookaheadLimit
from freerun.core import Batch, Task
from freerun.core.nouns import trained_by_version
from freerun.core.reports import StepResult
from freerun.engines.scripted import Script
from freerun.rewards.base import JudgeReason, Verdict
from tests.control.test_promises import ScriptedTrainer, World
from tests.fakeclock import run_fast


def taken(lookahead: LookaheadLimit, times: int, waited_s: float, left: int, held: bool = True) -> int:
    for _ in range(times):
        lookahead.holds(lookahead.limit if held else 0)
        lookahead.taken(waited_s, 10.0, left)
    return lookahead.limit


def test_it_grows_while_the_trainer_waits_for_what_could_have_been_admitted() -> None:
    lookahead = LookaheadLimit(batch=8, max_staleness=2)
    assert lookahead.limit == 16
    assert taken(lookahead, 2, waited_s=5.0, left=0) == 20
    assert taken(lookahead, 9, waited_s=5.0, left=0) == 24, "the formula admits no more"
    other = LookaheadLimit(batch=8, max_staleness=2)
    assert taken(other, 5, waited_s=5.0, left=0, held=False) == 16, "the engines were full: more would only have queued"


def test_it_shrinks_when_nobody_has_waited_for_what_was_left() -> None:
    lookahead = LookaheadLimit(batch=8, max_staleness=2)
    assert taken(lookahead, 3, waited_s=0.0, left=6) == 16, "it may have waited just before"
    assert taken(lookahead, 1, waited_s=0.0, left=6) == 13
    assert taken(lookahead, 1, waited_s=1.0, left=0) == 15, "a wait at once makes it grow"
    assert taken(lookahead, 3, waited_s=0.0, left=6) == 15
    assert taken(lookahead, 9, waited_s=0.0, left=6) == 8, "less than a batch would starve the trainer"


def test_a_short_wait_is_none() -> None:
    lookahead = LookaheadLimit(batch=8, max_staleness=2)
    assert taken(lookahead, 20, waited_s=0.1, left=6) == 8


def test_what_always_queues_for_the_judge_is_too_much_and_none_is_added_meanwhile() -> None:
    queue = 6
    lookahead = LookaheadLimit(batch=8, max_staleness=4, queued=lambda: queue)
    taken(lookahead, 1, waited_s=5.0, left=0)
    assert taken(lookahead, 2, waited_s=5.0, left=0) == 18, (
        "at first nothing queued: a quarter of a batch more, no further"
    )
    assert taken(lookahead, 1, waited_s=5.0, left=0) == 15, "six queued for three steps"
    queue = 2
    lookahead.judging()
    queue = 6
    assert taken(lookahead, 3, waited_s=5.0, left=0) == 14, "it is the least that counts"
    queue = 0
    assert taken(lookahead, 1, waited_s=5.0, left=0) == 16, "the judge had no work for a moment"


def test_a_whole_batch_that_queues_for_the_judge_holds_the_next_group_at_once() -> None:
    queue = 8
    lookahead = LookaheadLimit(batch=8, max_staleness=4, queued=lambda: queue)
    assert lookahead.holds(9)
    assert lookahead.queues
    queue = 7
    assert not lookahead.holds(9), "as many as the judge gets through meanwhile may be on their way"
    assert taken(lookahead, 1, waited_s=5.0, left=0, held=False) == 16, "it was not the limit that held"


def test_synchronous_training_has_one_batch() -> None:
    lookahead = LookaheadLimit(batch=8, max_staleness=0)
    assert lookahead.limit == 8
    assert taken(lookahead, 5, waited_s=5.0, left=0) == 8


@dataclass
class Steady(World):
    """Every answer takes `answer_s`, every step `step_s`."""

    answer_s: float = 1.0
    ages: list[float] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.trainer = Punctual(self)

    def _script(self, prompt: list[int], seed: int, index: int) -> Script:
        return Script(10, self.answer_s / 10)

    async def judge(self, task: Task, text: str) -> Verdict:
        return Verdict(1.0, JudgeReason.OK)


class Punctual(ScriptedTrainer):
    def __init__(self, world: Steady) -> None:
        super().__init__(world)
        self._steady = world
        self._free_s: float | None = None

    async def step(self, batch: Batch) -> StepResult:
        loop, world = asyncio.get_running_loop(), self._steady
        versions = trained_by_version(batch.samples)
        ages = sum((batch.version - version) * count for version, count in versions.items())
        world.ages.append(ages / versions.total())
        if self._free_s is not None:
            world.waits_s.append(loop.time() - self._free_s)
        await asyncio.sleep(world.step_s)
        self.version += 1
        self._free_s = loop.time()
        return StepResult(self.version, weights=await self.publish())


@dataclass
class SlowJudge(Steady):
    """Every answer takes `judge_s`, once it is its turn."""

    judge_s: float = 1.0

    async def judge(self, task: Task, text: str) -> Verdict:
        await asyncio.sleep(self.judge_s)
        return Verdict(1.0, JudgeReason.OK)


@pytest.mark.parametrize(
    ("answer_s", "judge_s", "judges", "age"), [(0.1, 0.02, 1, 1.4), (1.0, 0.02, 1, 1.4), (1.0, 1.0, 8, 1.6)]
)
def test_a_slow_judge_is_kept_busy_and_what_it_judges_is_not_old(
    answer_s: float, judge_s: float, judges: int, age: float
) -> None:
    """Before, everything was as old as the bound allows: four versions."""
    world = SlowJudge(
        1, steps=40, groups_per_step=8, group_size=8, max_staleness=4, max_running=256, step_s=0.05,
        answer_s=answer_s, judge_s=judge_s, judges=judges,
    )  # fmt: skip
    run_fast(world.go())
    per_step_s = sum(world.waits_s[-20:]) / 20 + world.step_s
    assert per_step_s == pytest.approx(64 * judge_s / judges, rel=0.02), "as fast as it can judge"
    assert sum(world.ages[-20:]) / 20 < age


@pytest.mark.parametrize("slots", [16, 64, 1000])
def test_where_engines_are_faster_every_token_is_one_version_old(slots: int) -> None:
    world = Steady(1, steps=40, groups_per_step=8, group_size=4, max_staleness=4, max_running=slots, step_s=5.0)
    run_fast(world.go())
    assert max(world.ages[-20:]) <= 1.2
    assert max(world.waits_s[-20:]) < 0.2, "it never waited for more than the new weights to arrive"


def test_where_engines_are_slower_they_are_kept_busy() -> None:
    world = Steady(1, steps=40, groups_per_step=8, group_size=4, max_staleness=4, max_running=16, step_s=0.5)
    run_fast(world.go())
    per_step_s = sum(world.waits_s[-20:]) / 20 + world.step_s
    assert per_step_s == pytest.approx(2.0, rel=0.1), "8 groups of 4 answers, 16 at a time for a second"
