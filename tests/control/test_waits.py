"""Waits: counted by cause, and explained when they are longer than usual."""

import asyncio
from collections import Counter

import pytest

from freerun.control.waits import TRAINER, Usual, Waits
from freerun.core.observer import Observer
from freerun.core.waits import WaitCause
from tests.fakeclock import run_fast


class Told(Observer):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.doings: list[str] = []
        self.seconds = Counter[WaitCause]()

    def note(self, text: str) -> None:
        self.notes.append(text)

    def doing(self, process: str, what: str) -> None:
        self.doings.append(what)

    def waited(self, who: str, cause: WaitCause, seconds: float) -> None:
        self.seconds[cause] += seconds  # type: ignore[assignment]


async def taking(seconds: float) -> None:
    await asyncio.sleep(seconds)


def test_usual_is_five_times_the_median_and_twice_what_one_in_ten_takes() -> None:
    usual = Usual(patience_s=60)
    for _ in range(4):
        usual.add(2.0)
    assert usual.longer_s == 60, "too few to know"
    usual.add(2.0)
    assert usual.longer_s == 10
    for _ in range(10):
        usual.add(0.1)
    assert usual.longer_s == 5, "a few seconds are never said"
    for _ in range(3):
        usual.add(30.0)
    assert usual.longer_s == 60, "it waits seldom, and then for long"


def test_a_wait_longer_than_usual_is_said_once_and_again_when_it_has_doubled() -> None:
    told = Told()

    async def wait() -> None:
        waits = Waits(told, patience_s=60)
        for _ in range(8):
            await waits.aloud("batch", taking(2.0), lambda: "never")
        assert (told.notes, told.doings) == ([], [])
        await waits.aloud("batch", taking(45.0), lambda: "the trainer waits for 3 groups")
        await waits.aloud("other", taking(45.0), lambda: "never")

    run_fast(wait())
    seconds = [int(note.split("(for ")[1].split()[0]) for note in told.notes]
    assert len(seconds) == 3
    assert seconds == pytest.approx([10, 20, 40], abs=4)
    assert told.notes[0].startswith("the trainer waits for 3 groups (for 1")
    assert told.doings[0] == "the trainer waits for 3 groups"
    assert told.doings[-1] == "idle"


def test_seconds_are_counted_by_the_cause_there_was_at_the_time() -> None:
    told, cause = Told(), WaitCause.GENERATION

    async def wait() -> None:
        nonlocal cause
        waits = Waits(told, patience_s=60)
        with waits.of(TRAINER, lambda: cause):
            await asyncio.sleep(3)
            cause = WaitCause.JUDGING
            waits.look()
            await asyncio.sleep(2)
            cause = WaitCause.WEIGHTS
        assert waits.cause(TRAINER) is None

    run_fast(wait())
    assert told.seconds[WaitCause.GENERATION] == pytest.approx(3)
    assert told.seconds[WaitCause.JUDGING] == pytest.approx(2)
    assert told.seconds[WaitCause.WEIGHTS] == 0, "what ended the wait is not what it was for"
