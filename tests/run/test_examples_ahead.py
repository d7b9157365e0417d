"""Batches that are made ahead are those that would have been made anyway, and a position covers what was taken."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freerun.core import DataError, Sample, Task
from freerun.core.groups import Position
from freerun.data.stream import TaskStream
from freerun.run.examples_ahead import ExamplesAhead


def stream(count: int) -> TaskStream:
    return TaskStream([Task(str(i), "", []) for i in range(count)], seed=3, shuffle=True, epochs=None)


def no_samples(task: Task) -> list[Sample]:
    return []


@given(count=st.integers(1, 9), size=st.integers(1, 5), first=st.integers(0, 6), more=st.integers(1, 6))
def test_going_on_from_a_position_gives_what_would_have_come(count: int, size: int, first: int, more: int) -> None:
    expected = stream(count)
    with ExamplesAhead(stream(count), no_samples, size, 0) as batches:
        for version in range(first):
            batch = next(batches)
            assert batch.version == version
            assert [group.task.id for group in batch.groups] == [next(expected).id for _ in range(size)]
            assert batches.position == expected.position, "of what was taken, not of what was made ahead"
        left_at = batches.position
    going_on = stream(count)
    going_on.seek(left_at)
    with ExamplesAhead(going_on, no_samples, size, first) as batches:
        for _ in range(more):
            assert [group.task.id for group in next(batches).groups] == [next(expected).id for _ in range(size)]


def test_the_next_batch_is_made_while_nobody_asks_for_it() -> None:
    made = threading.Semaphore(0)

    def example(task: Task) -> list[Sample]:
        made.release()
        return []

    with ExamplesAhead(stream(10), example, 2, 0) as batches:
        next(batches)
        for _ in range(4):
            assert made.acquire(timeout=10)


def test_an_example_that_cannot_be_made_is_heard_of_when_its_batch_is_asked_for() -> None:
    asked = 0

    def example(task: Task) -> list[Sample]:
        nonlocal asked
        if (asked := asked + 1) > 2:
            raise DataError("no answer to learn from")
        return []

    with ExamplesAhead(stream(10), example, 2, 0) as batches:
        next(batches)
        with pytest.raises(DataError, match="no answer to learn from"):
            next(batches)


def test_nothing_is_made_before_the_first_batch_is_asked_for() -> None:
    tasks = stream(4)
    with ExamplesAhead(tasks, no_samples, 2, 0) as batches:
        assert batches.position == tasks.position == Position()
