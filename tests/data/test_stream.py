from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freerun.core import DataError, Task
from freerun.core.groups import Position
from freerun.data.stream import TaskStream

counts = st.integers(1, 30)
seeds = st.integers(0, 2**40)


def tasks(count: int) -> list[Task]:
    return [Task(id=str(i), prompt="", prompt_tokens=[i]) for i in range(count)]


def ids(stream: TaskStream, count: int | None = None) -> list[str]:
    return [task.id for task in islice(stream, count)]


@given(counts, seeds, st.booleans(), st.integers(0, 4))
def test_each_epoch_yields_each_task_once(count: int, seed: int, shuffle: bool, epochs: int) -> None:
    stream = TaskStream(tasks(count), seed=seed, shuffle=shuffle, epochs=epochs)
    assert len(stream) == count
    for epoch in range(epochs):
        assert stream.position == Position(epoch, 0)
        assert sorted(ids(stream, count), key=int) == [str(i) for i in range(count)]
    assert ids(stream) == []
    assert stream.position == Position(epochs, 0)


@given(counts, seeds, st.booleans(), st.integers(0, 100), st.integers(0, 100), st.integers(0, 100))
def test_seek_continues_exactly(count: int, seed: int, shuffle: bool, taken: int, elsewhere: int, more: int) -> None:
    """Whatever the stream that seeks has done before."""
    first = TaskStream(tasks(count), seed=seed, shuffle=shuffle, epochs=None)
    ids(first, taken)
    second = TaskStream(tasks(count), seed=seed, shuffle=shuffle, epochs=None)
    ids(second, elsewhere)
    second.seek(first.position)
    assert second.position == first.position == Position(*divmod(taken, count))
    assert ids(second, more) == ids(first, more)
    assert second.position == first.position


def test_epochs_and_seeds_differ_and_an_order_is_forever() -> None:
    stream = TaskStream(tasks(8), seed=3, shuffle=True, epochs=None)
    first, second = ids(stream, 8), ids(stream, 8)
    assert first != second
    assert first != ids(TaskStream(tasks(8), seed=4, shuffle=True, epochs=None), 8)
    assert first == list("31054726")  # a resumed run depends on this order: it must never change


def test_unshuffled_is_the_datas_own_order() -> None:
    assert ids(TaskStream(tasks(3), seed=0, shuffle=False, epochs=2)) == ["0", "1", "2", "0", "1", "2"]


def test_a_position_past_the_last_epoch_is_the_end() -> None:
    stream = TaskStream(tasks(2), seed=0, shuffle=True, epochs=1)
    stream.seek(Position(5, 1))
    assert ids(stream) == []


@pytest.mark.parametrize("position", [Position(0, 2), Position(0, -1), Position(-1, 0)])
def test_a_position_that_is_not_there_is_refused(position: Position) -> None:
    stream = TaskStream(tasks(2), seed=0, shuffle=True, epochs=None)
    with pytest.raises(DataError, match="changed since the position was saved"):
        stream.seek(position)


def test_no_tasks_is_refused() -> None:
    with pytest.raises(DataError, match="no tasks"):
        TaskStream([], seed=0, shuffle=True, epochs=1)


@given(counts, seeds, st.booleans())
def test_a_position_means_the_same_task_wherever_the_stream_is(count: int, seed: int, shuffle: bool) -> None:
    stream = TaskStream(tasks(count), seed=seed, shuffle=shuffle, epochs=None)
    first = ids(stream, 3 * count)
    places = [Position(epoch, index) for epoch in range(3) for index in range(count)]
    assert [stream.at(place).id for place in reversed(places)] == first[::-1]


def test_a_fingerprint_is_of_the_tasks_and_their_order() -> None:
    def fingerprint(count: int, seed: int, shuffle: bool) -> str:
        return TaskStream(tasks(count), seed=seed, shuffle=shuffle, epochs=None).fingerprint

    assert fingerprint(8, 3, True) == fingerprint(8, 3, True)
    assert fingerprint(8, 3, False) == fingerprint(8, 4, False)
    assert (
        len({fingerprint(8, 3, True), fingerprint(8, 4, True), fingerprint(7, 3, True), fingerprint(8, 3, False)}) == 4
    )
    task = Task("t", "q", [1], "a")
    of = [task, replace(task, prompt="Q"), replace(task, answer="b"), replace(task, extra={"prompt": "Q"})]
    assert len({TaskStream([one], seed=0, shuffle=True, epochs=None).fingerprint for one in of}) == 3, (
        "question and answer count, and not how the question was rendered"
    )
