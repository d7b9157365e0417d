"""Tasks that are solved come back less and less often, and a crash changes nothing of it."""

from collections import Counter
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from freerun.control.groups import GroupBook
from freerun.control.solved import SolvedTasks
from freerun.control.task_queue import TaskQueue
from freerun.core import DropReason, FinishReason, Group, Sample, Task
from freerun.core.groups import GroupEvent, Position, Stage
from freerun.core.state import RunState, SitOut
from freerun.data.stream import TaskStream
from freerun.rewards.base import JudgedSample, JudgeReason, Verdict
from tests.control.test_promises import audit
from tests.control.test_resume import Crashing, state_of
from tests.fakeclock import run_fast

SOLVED, MISSED = [1.0, 1.0], [1.0, 0.0]


def stream(tasks: int, epochs: int | None = None) -> TaskStream:
    return TaskStream([Task(str(i), "", []) for i in range(tasks)], seed=0, shuffle=False, epochs=epochs)


def ended(task: str, epoch: int, rewards: Sequence[float]) -> GroupEvent:
    return GroupEvent(Stage.TRAINED, 0, task, Position(epoch), 0, len(rewards), tuple(rewards))


def play(tasks: TaskQueue, solved: set[str], rounds: int) -> list[str]:
    """Each task asked and done with, one after another."""
    asked = []
    for _ in range(rounds):
        found = next(tasks, None)
        if found is None:
            break
        position, task = found
        tasks.solved.note(ended(task.id, position.epoch, SOLVED if task.id in solved else MISSED))
        asked.append(task.id)
    return asked


def test_what_is_solved_sits_out_one_pass_then_two_then_four_and_no_more_than_the_most() -> None:
    solved, asked = SolvedTasks(most=4), []
    for epoch in range(24):
        if not solved.sits_out("a", epoch):
            asked.append(epoch)
            solved.note(ended("a", epoch, SOLVED))
    assert asked == [0, 2, 5, 10, 15, 20]


def test_a_miss_brings_it_back_at_once() -> None:
    solved = SolvedTasks(most=8)
    solved.note(ended("a", 0, SOLVED))
    solved.note(ended("a", 2, SOLVED))
    solved.note(ended("a", 5, MISSED))
    assert not solved.sits_out("a", 6)
    solved.note(ended("a", 6, SOLVED))
    assert solved.resting == {"a": SitOut(1, 8)}


def test_every_task_is_asked_in_every_pass_by_default() -> None:
    assert play(TaskQueue(stream(2)), {"0", "1"}, 6) == ["0", "1"] * 3


def test_only_solved_tasks_sit_out() -> None:
    tasks = TaskQueue(stream(3), solved=SolvedTasks(most=8))
    assert play(tasks, {"1"}, 13) == ["0", "1", "2"] + ["0", "2"] + ["0", "1", "2"] + ["0", "2"] * 2 + ["0"]


def test_when_all_sit_out_the_first_to_come_back_is_dealt() -> None:
    assert play(TaskQueue(stream(2), solved=SolvedTasks(most=8)), {"0", "1"}, 5) == ["0", "1", "0", "1", "0"]


def test_passes_that_are_sat_out_count_as_epochs() -> None:
    assert play(TaskQueue(stream(2, epochs=4), solved=SolvedTasks(most=8)), {"0", "1"}, 9) == ["0", "1", "0", "1"]


def test_a_result_counts_when_the_group_has_ended() -> None:
    solved, book = SolvedTasks(most=8), GroupBook()
    book.listeners.append(solved.note)
    task = Task("0", "", [])
    samples = [Sample([0], [True], [0.0], [0], FinishReason.STOP, "", 1.0) for _ in range(2)]
    book.deal(Position(), task, samples=2)
    book.admitted(0, version=0)
    book.sampled(0)
    book.judged(Group(0, task, samples, 0), ["ok", "ok"])
    assert solved.resting == {}
    book.drop(0, DropReason.NO_SIGNAL, version=0)
    assert solved.resting == {"0": SitOut(1, 2)}


def test_a_group_without_a_result_changes_nothing() -> None:
    solved, book = SolvedTasks(most=8, resting={"0": SitOut(2, 0)}), GroupBook()
    book.listeners.append(solved.note)
    book.deal(Position(), Task("0", "", []), samples=2)
    book.admitted(0, version=0)
    book.drop(0, DropReason.ROLLOUT_FAILED, version=0)
    assert solved.resting == {"0": SitOut(2, 0)}


@given(st.integers(1, 6), st.sets(st.sampled_from("012345")), st.integers(0, 25), st.integers(0, 4))
def test_a_run_that_was_cut_off_deals_what_the_other_would_have(
    tasks: int, solved: set[str], cut: int, most: int
) -> None:
    whole = play(TaskQueue(stream(tasks), solved=SolvedTasks(most)), solved, 40)
    first = TaskQueue(stream(tasks), solved=SolvedTasks(most))
    before = play(first, solved, cut)
    again = stream(tasks)
    again.seek(Position(first.position.epoch, first.position.index))
    second = TaskQueue(again, first.owed, SolvedTasks(most, resting=first.solved.resting))
    assert before + play(second, solved, 40 - cut) == whole


class Arithmetic(Crashing):
    """The policy solves every task but the first two, which it gets right every other time."""

    async def judge_all(self, task: Task, answers: Sequence[str | JudgedSample]) -> list[Verdict]:
        hard = task.id in ("task-0", "task-1")
        return [Verdict(float(not hard or index == 0), JudgeReason.OK) for index in range(len(answers))]

    @property
    def asked(self) -> list[str]:
        return [event.task for event in self.events if event.stage is Stage.ADMITTED]


def test_a_run_asks_mostly_what_it_can_learn_from() -> None:
    def asked(skip_solved: int) -> Counter[str]:
        world = Arithmetic(1, steps=30, drop_no_signal=True, skip_solved=skip_solved)
        run_fast(world.go())
        audit(world)
        return Counter(world.asked)

    always, seldom = asked(0), asked(4)
    assert min(always.values()) >= max(always.values()) - 1
    assert seldom["task-0"] >= 30
    assert 3 <= seldom["task-9"] <= 10


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**9), st.floats(0.0, 60.0))
def test_a_crash_changes_nothing_for_tasks_that_sit_out(seed: int, after_s: float) -> None:
    def world(begins: RunState) -> Arithmetic:
        return Arithmetic(seed, steps=12, max_staleness=0, drop_no_signal=True, skip_solved=4, begins=begins)

    whole, first = world(RunState()), world(RunState())
    run_fast(whole.go())
    if left := run_fast(first.crashes(after_s)):
        second = world(state_of(left[0]))
        run_fast(second.go())
        assert whole.asked[-len(second.asked) :] == second.asked
