"""The book of groups: what it counts, what it refuses, and that it does not grow."""

import gc
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freerun.control.admission import Admission
from freerun.control.bound import Drop
from freerun.control.buffer import Buffer
from freerun.control.groups import GroupBook, OpenGroup
from freerun.control.lookahead import LookaheadLimit
from freerun.control.solved import SolvedTasks
from freerun.core import Batch, DropReason, FinishReason, Group, Sample, Task
from freerun.core.groups import GroupEvent, Position, Stage
from freerun.engines.scripted import Script
from freerun.rewards.base import JudgeReason, Verdict
from tests.control.test_promises import World, audit
from tests.fakeclock import run_fast


class Unreadable(World):
    """Every third answer cannot be read, every seventh not be judged."""

    asked = 0

    async def judge(self, task: Task, text: str) -> Verdict:
        self.asked += 1
        if self.asked % 7 == 0:
            return Verdict(None, JudgeReason.CRASH)
        if self.asked % 3 == 0:
            return Verdict(0.0, JudgeReason.UNPARSEABLE)
        return Verdict(1.0, JudgeReason.OK)


def test_answers_that_cannot_be_read_are_trained_on_and_counted_apart() -> None:
    world = Unreadable(0, group_size=4)
    run_fast(world.go())
    audit(world)
    crashed, unreadable = world.asked // 7, world.asked // 3 - world.asked // 21
    counts = {"ok": world.asked - crashed - unreadable, "unparseable": unreadable, "crash": crashed}
    assert world.run.book.tally.judgements == counts
    assert all(counts.values())
    assert any(sample.reward == 0 for batch in world.batches for sample in batch.samples)


COUNTED = {OpenGroup, GroupEvent, Group, Sample}


class Alive(list[int]):
    """How many objects of a group's life there are, looked at now and then, beyond those that other tests keep."""

    def __init__(self) -> None:
        self.before = self.alive()

    @staticmethod
    def alive() -> int:
        gc.collect()
        return sum(type(found) in COUNTED for found in gc.get_objects())

    def look(self) -> None:
        self.append(self.alive() - self.before)

    def assert_at_most(self, number: int) -> None:
        assert len(self) == 10
        assert max(self) <= number, "of groups that ended long ago"


class Forgetful(World):
    """Keeps nothing of its groups itself."""

    ended, alive = 0, Alive()

    def _script(self, prompt: list[int], seed: int, index: int) -> Script:
        return Script(1, 0.01)

    def group(self, event: GroupEvent) -> None:
        self.ended += event.stage.is_end

    def learning(self, batch: Batch, masked_tokens: int) -> None:
        self.batches.clear()
        if batch.version % 20 == 10:
            self.alive.look()


def test_a_long_run_keeps_nothing_of_the_groups_that_ended() -> None:
    world = Forgetful(0, steps=200, groups_per_step=50, group_size=1, max_staleness=4, step_s=0.01)
    run_fast(world.go())
    assert world.run.book.tally.trained == world.ended == 10_000
    world.alive.assert_at_most(4 * 5 * 50)  # four objects each, five batches on their way


async def test_the_book_stays_flat_over_100_000_groups() -> None:
    """With whatever reads it: admission, the buffer, the tasks that are solved."""
    book, solved, alive = GroupBook(), SolvedTasks(most=4), Alive()
    book.listeners.append(solved.note)
    tasks = [Task(str(index), "", [1]) for index in range(100)]
    sample = Sample([1, 2], [False, True], [0.0, -1.0], [-1, 0], FinishReason.STOP, "", 1.0)
    admission = Admission(book, 100, max_staleness=0, total_samples=10**9)
    buffer = Buffer(book, Drop(10**9), LookaheadLimit(100, max_staleness=0))
    for version in range(1_000):
        for index, task in enumerate(tasks):
            opened = book.deal(Position(version, index), task, samples=1)
            await admission.admit(opened)
            book.sampled(opened.id)
            book.judged(Group(opened.id, task, [sample], version), ["ok"])
            if index % 10:
                book.made_ready(opened.id)
            else:
                book.drop(opened.id, DropReason.NO_SIGNAL, version)
        for group in (await buffer.take(90, version)).take:
            book.trained(group.id, version)
        admission.advance(version + 1)
        if version % 100 == 50:
            alive.look()
    assert (book.tally.trained, book.tally.dropped) == (90_000, {DropReason.NO_SIGNAL: 10_000})
    alive.assert_at_most(4 * 100)


STAGES = list(Stage)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(STAGES[1:])), max_size=60), st.integers(1, 3))
def test_a_group_moves_along_the_arrows_alone_and_ends_once(moves: list[tuple[int, Stage]], samples: int) -> None:
    """Against a model that knows nothing but the last event of each group."""
    book, seen = GroupBook(), list[GroupEvent]()
    book.listeners.append(seen.append)
    stage = {book.deal(Position(0, i), Task(str(i), "", []), samples).id: Stage.DEALT for i in range(5)}
    allowed = {(a, b) for a, b in pairwise(STAGES[:-1])} | {(a, Stage.DROPPED) for a in STAGES[1:-2]}
    for group, to in moves:
        if (stage[group], to) in allowed:
            move(book, group, to)
            stage[group] = to
        else:
            with pytest.raises((ValueError, KeyError)):
                move(book, group, to)
    alive = [group for group, at in stage.items() if not at.is_end]
    assert book.owed == [Position(0, group) for group in alive]
    assert [opened.id for opened in book.open] == [group for group in alive if stage[group] is not Stage.DEALT]
    assert book.num_ready == len(book.ready) == list(stage.values()).count(Stage.READY)
    assert book.num_running == len(book.running)
    assert book.submitted == samples * sum(at not in (Stage.DEALT, Stage.DROPPED) for at in stage.values())
    tally = book.tally
    assert (tally.trained, sum(tally.dropped.values())) == tuple(
        list(stage.values()).count(end) for end in (Stage.TRAINED, Stage.DROPPED)
    )
    assert {event.group: event.stage for event in seen} == stage, "the events alone tell the same"


def move(book: GroupBook, group: int, to: Stage) -> None:
    judged = Group(group, Task(str(group), "", []), [], 0)
    {
        Stage.ADMITTED: lambda: book.admitted(group, 0),
        Stage.SAMPLED: lambda: book.sampled(group),
        Stage.JUDGED: lambda: book.judged(judged, []),
        Stage.READY: lambda: book.made_ready(group),
        Stage.TRAINING: lambda: book.training(group),
        Stage.TRAINED: lambda: book.trained(group, 0),
        Stage.DROPPED: lambda: book.drop(group, DropReason.NO_SIGNAL, 0),
    }[to]()
