"""Spans of many things at once: none of one lane overlaps, and thousands of short ones are a few."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freerun.core import lanes as module
from freerun.core.lanes import GAP_S, LONGEST_S, Lanes
from freerun.core.reports import Span


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def lanes(most: int = 2, gap_s: float = GAP_S) -> Lanes:
    return Lanes("rewards", "math", "judge", "judgements", most, gap_s)


def test_short_ones_in_a_row_are_one_span_that_counts_them(clock: Clock) -> None:
    judging = lanes()
    for _ in range(1000):
        with judging.busy():
            clock.now_s += 0.001
        clock.now_s += 0.001
    assert judging.take() == [], "it may go on"
    clock.now_s += GAP_S
    (span,) = judging.take()
    assert (span.process, span.track, span.name, span.args) == ("rewards", "math 1", "judge", {"judgements": 1000})
    assert span.seconds == pytest.approx(1.999)
    assert judging.take(every=True) == []


def test_a_long_one_is_ended_for_those_who_follow(clock: Clock) -> None:
    judging = lanes()
    for _ in range(40):
        with judging.busy():
            clock.now_s += LONGEST_S / 10
    taken = judging.take()
    assert 2 <= len(taken) <= 4
    assert sum(span.args["judgements"] for span in taken + judging.take(every=True)) == 40


def test_apart_they_keep_their_names(clock: Clock) -> None:
    sessions = lanes(gap_s=0.0)
    for task in ("a", "b"):
        with sessions.busy(task=task):
            clock.now_s += 1.0
    assert [span.args for span in sessions.take()] == [{"task": "a", "judgements": 1}, {"task": "b", "judgements": 1}]


Steps = st.lists(st.tuples(st.integers(0, 7), st.floats(0.0, 6.0)), max_size=60)


@given(Steps, st.integers(1, 3), st.sampled_from([0.0, GAP_S]))
def test_nothing_overlaps_in_a_lane_and_nothing_is_lost(
    steps: list[tuple[int, float]], most: int, gap_s: float
) -> None:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "time", clock)
        tried, going, ended, spans = lanes(most, gap_s), dict[int, Callable[[], None]](), 0, list[Span]()
        for thing, passes_s in steps:
            if thing == 7:
                spans += tried.take()
            elif thing in going:
                going.pop(thing)()
                ended += 1
            else:
                going[thing] = tried.begin()
            clock.now_s += passes_s
        spans += tried.take(every=True)
    assert sum(span.args["judgements"] for span in spans) == ended
    for track in {span.track for span in spans}:
        of_track = sorted((span for span in spans if span.track == track), key=lambda span: span.start_s)
        assert all(one.end_s <= other.start_s for one, other in pairwise(of_track))
        assert all(span.seconds >= 0 for span in of_track)
    assert len({span.track for span in spans}) <= most + 1
