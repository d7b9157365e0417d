"""Real forked processes: their parts come in order, their errors as they are, and nothing of them is left."""

import os
import signal
import threading
from collections.abc import Sequence

import pytest

from freerun.core import DataError, FreerunError
from freerun.machine import spread as module
from freerun.machine.spread import spread


@pytest.fixture(autouse=True)
def three_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "processors", lambda: 3)
    monkeypatch.setattr(module, "_PART", 10)
    before = threading.active_count()  # who runs the tests may have threads that wait
    monkeypatch.setattr(module, "other_threads", lambda: threading.active_count() > before)


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes that are, as they are forked."""
    found, fork = list[int](), os.fork

    def noted() -> int:
        child = fork()
        found.append(child)
        return child

    monkeypatch.setattr(os, "fork", noted)
    return found


def nothing_left(processes: list[int]) -> None:
    assert len(processes) == 3
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def made(items: Sequence[int]) -> list[tuple[int, int]]:
    return [(item, os.getpid()) for item in items]


def test_parts_come_in_order_from_several_processes(forked: list[int]) -> None:
    parts = list(spread(made, range(97)))
    assert [item for part in parts for item, _ in part] == list(range(97))
    processes = {process for part in parts for _, process in part}
    assert len(processes) == 3
    assert os.getpid() not in processes
    nothing_left(forked)


@pytest.mark.parametrize("count", [0, 5, 39])
def test_few_items_are_not_worth_a_process(count: int) -> None:
    parts = list(spread(made, range(count)))
    assert [item for part in parts for item, _ in part] == list(range(count))
    assert all(process == os.getpid() for part in parts for _, process in part) == (count < 39)


def test_beside_other_threads_nothing_is_forked() -> None:
    over = threading.Event()
    beside = threading.Thread(target=over.wait)
    beside.start()
    try:
        parts = list(spread(made, range(97)))
    finally:
        over.set()
        beside.join()
    assert {process for part in parts for _, process in part} == {os.getpid()}


def test_the_first_error_is_raised() -> None:
    def fails(items: Sequence[int]) -> list[int]:
        if 35 in items or 71 in items:
            raise DataError(f"{items[0]} is wrong")
        return list(items)

    parts = spread(fails, range(97))
    assert [item for _ in range(3) for item in next(parts)] == list(range(30))
    with pytest.raises(DataError, match="30 is wrong"):
        next(parts)


def test_a_process_that_is_killed_is_heard_of(forked: list[int]) -> None:
    def killed(items: Sequence[int]) -> list[int]:
        if 35 in items:
            os.kill(os.getpid(), signal.SIGKILL)
        return list(items)

    with pytest.raises(FreerunError, match="was killed, most likely for want of memory"):
        list(spread(killed, range(97)))
    nothing_left(forked)


def test_who_stops_early_leaves_nothing_behind(forked: list[int]) -> None:
    parts = spread(made, range(97))
    next(parts)
    parts.close()
    nothing_left(forked)
