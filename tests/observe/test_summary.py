import math
import random

import pytest

from freerun.core.reports import Span
from freerun.observe.summary import intersection, outcome, overlap, summarise, trend, union
from tests.observe.runs import a_step


def busy(process: str, track: str, *intervals: tuple[float, float]) -> list[Span]:
    return [Span(track, track, start, end, process=process) for start, end in intervals]


def test_union_closes_overlaps_and_small_gaps() -> None:
    assert union([(3, 4), (0, 1), (0.5, 2)]) == [(0, 2), (3, 4)]
    assert union([(0, 1), (1.5, 2)], gap_s=0.5) == [(0, 2)]


def test_intersection_agrees_with_counting_moments() -> None:
    rng = random.Random(0)
    for _ in range(50):
        a, b = (union((s, s + rng.randint(1, 4)) for s in rng.sample(range(40), 6)) for _ in range(2))
        both = intersection(a, b)
        for moment in (t + 0.5 for t in range(45)):
            inside = [any(s < moment < e for s, e in side) for side in (a, b, both)]
            assert inside[2] == (inside[0] and inside[1])


def test_overlap_counts_moments_when_any_engine_and_the_trainer_are_busy() -> None:
    spans = [
        *busy("engine 0", "generate", (0, 4), (5, 8)),
        *busy("engine 1", "generate", (2, 6)),
        *busy("engine 0", "update", (4, 5)),
        *busy("trainer", "step", (3, 7), (8, 10)),
        *busy("controller", "wait", (0, 100)),
    ]
    found = overlap(spans)
    assert found is not None
    assert found.wall == (0, 10)
    assert found.both == [(3, 7)]
    assert found.share == pytest.approx(0.4)
    assert found.engine_s == pytest.approx(5.5)  # (7 + 4) / 2
    assert found.trainer_s == pytest.approx(6.0)


def test_nothing_generated_or_trained_has_no_overlap() -> None:
    assert overlap(busy("controller", "wait", (0, 1))) is None


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


def test_the_outcome_says_reward_time_and_bound() -> None:
    steps = [a_step(i, reward_mean_all=i / 100) for i in range(1, 51)]
    spans = [*busy("engine 0", "generate", (0, 100)), *busy("trainer", "step", (50, 100))]
    said = outcome(summarise(steps, [], spans), bound=1)
    assert said == (
        "Reward rose from 0.055 to 0.455 in 50 steps and 1m40s, with generation and training running at the same time "
        "for 50% of it. No token was trained on past the staleness bound of 1."
    )


def test_a_broken_bound_is_said_first_thing() -> None:
    summary = summarise([a_step(1, staleness_max=3), a_step(2)], [], [])
    assert "The staleness bound of 2 was broken: a token was trained on at 3." in outcome(summary, bound=2)


def test_figures_of_a_run() -> None:
    steps = [
        a_step(1, staleness_histogram={"0": 1000}),
        a_step(2, staleness_histogram={"0": 500, "2": 500}, staleness_max=2, dropped={"no_signal": 4}),
    ]
    summary = summarise(steps, [], [])
    assert summary.tokens_trained == 2000
    assert summary.tokens_per_s == pytest.approx(500)
    assert summary.staleness_histogram == {0: 1500, 2: 500}
    assert summary.staleness_mean == pytest.approx(0.5)
    assert summary.staleness_max == 2
    assert summary.dropped == {"no_signal": 4}
    assert summary.trainer_idle_share == pytest.approx(0.25)
