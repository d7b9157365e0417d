import math
import random
from pathlib import Path

import pytest

from freerun.core.records import StepRecord
from freerun.observe.columns import StepColumns
from freerun.observe.folder import encode
from freerun.observe.spans import SpanIndex
from freerun.observe.summary import Summary, outcome, overlap, summarise, trend
from freerun.observe.timeline import Timeline
from tests.observe.runs import a_step

Busy = tuple[str, str, list[tuple[float, float]]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "timeline.json"


def spans_of(path: Path, *tracks: Busy) -> SpanIndex:
    with Timeline(path, start_s=0.0) as timeline:
        for process, track, intervals in tracks:
            for start, end in intervals:
                timeline.span(process, track, track, start, end)
    index = SpanIndex(path)
    index.refresh()
    return index


def summary_of(path: Path, steps: list[StepRecord], *tracks: Busy) -> Summary:
    columns = StepColumns()
    for step in steps:
        columns.add(encode(step))
    return summarise(columns, spans_of(path, *tracks))


def test_overlap_counts_moments_when_any_engine_and_the_trainer_are_busy(path: Path) -> None:
    found = overlap(
        spans_of(
            path,
            ("engine 0", "generate", [(0, 4), (5, 8)]),
            ("engine 1", "generate", [(2, 6)]),
            ("engine 0", "update", [(4, 5)]),
            ("trainer", "step", [(3, 7), (8, 10)]),
            ("controller", "wait", [(0, 100)]),
        )
    )
    assert found is not None
    assert found.wall_s == 10
    assert found.both_s == pytest.approx(4)
    assert found.share == pytest.approx(0.4)
    assert found.engine_s == pytest.approx(5.5)  # (7 + 4) / 2
    assert found.trainer_s == pytest.approx(6.0)


def test_nothing_generated_or_trained_has_no_overlap(path: Path) -> None:
    assert overlap(spans_of(path, ("controller", "wait", [(0, 1)]))) is None


def test_a_trend_is_told_from_noise() -> None:
    rng = random.Random(0)
    flat = [0.5 + rng.gauss(0, 0.1) for _ in range(100)]
    rising = [value + i / 200 for i, value in enumerate(flat)]
    assert [t.moved for t in (trend(flat), trend(rising)) if t] == [False, True]
    level = trend(flat)
    assert level is not None
    assert level.window == 20


def test_two_noisy_steps_claim_nothing_and_missing_values_are_ignored() -> None:
    two = trend([0.1, math.nan, 0.9])
    assert two is not None
    assert (two.first, two.last, two.moved) == (0.1, 0.9, False)
    assert trend([math.nan]) is None


def test_the_outcome_says_reward_time_and_bound(path: Path) -> None:
    steps = [a_step(i, reward_mean_all=i / 100) for i in range(1, 51)]
    summary = summary_of(path, steps, ("engine 0", "generate", [(0, 100)]), ("trainer", "step", [(50, 100)]))
    assert outcome(summary, bound=1) == (
        "Reward rose from 0.055 to 0.455 in 50 steps and 1m40s, with generation and training running at the same time "
        "for 50% of it. No token was trained on past the staleness bound of 1."
    )


def test_a_broken_bound_is_said_first_thing(path: Path) -> None:
    summary = summary_of(path, [a_step(1, staleness_max=3, staleness_histogram={"3": 4}), a_step(2)])
    assert "The staleness bound of 2 was broken: a token was trained on at 3." in outcome(summary, bound=2)


def test_figures_of_a_run(path: Path) -> None:
    steps = [
        a_step(1, staleness_histogram={"0": 1000}),
        a_step(2, staleness_histogram={"0": 500, "2": 500}, staleness_max=2, dropped={"no_signal": 4}),
    ]
    summary = summary_of(path, steps)
    assert summary.tokens_trained == 2000
    assert summary.tokens_per_s == pytest.approx(500)
    assert summary.staleness_histogram == {0: 1500, 2: 500}
    assert summary.staleness_mean == pytest.approx(0.5)
    assert summary.staleness_max == 2
    assert summary.dropped == {"no_signal": 4}
    assert summary.agents is None
