import random
from pathlib import Path

import numpy as np
import pytest

from freerun.observe.spans import SpanIndex, busy, common_s, seconds
from freerun.observe.timeline import Timeline


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "timeline.json"


def index_of(path: Path) -> SpanIndex:
    index = SpanIndex(path)
    index.refresh()
    return index


def test_a_window_has_the_spans_that_reach_into_it_with_name_and_arguments(path: Path) -> None:
    with Timeline(path, start_s=0.0) as timeline:
        for i in range(10):
            timeline.span("engine 0", "generate", f"burst {i}", i, i + 0.8, tokens=i)
    window = index_of(path).window(2.5, 4.2)
    (row,) = window["rows"]
    assert (row["process"], row["track"]) == ("engine 0", "generate")
    assert row["bars"] == [[float(i), i + 0.8, f"burst {i}", {"tokens": i}, 1] for i in (2, 3, 4)]


def test_spans_that_a_pixel_cannot_tell_apart_are_one_bar_and_none_is_lost(path: Path) -> None:
    with Timeline(path, start_s=0.0) as timeline:
        for i in range(5000):
            timeline.span("trainer", "step", f"step {i}", i / 100, i / 100 + 0.008)
        timeline.span("trainer", "step", "a late one", 80.0, 81.0)
    (row,) = index_of(path).window(0.0, 81.0, width=100)["rows"]
    assert len(row["bars"]) < 100
    assert sum(bar[4] for bar in row["bars"]) == 5001
    assert row["bars"][-1][:2] == [80.0, 81.0]


def test_a_span_around_others_is_seen_where_they_are_not(path: Path) -> None:
    with Timeline(path, start_s=0.0) as timeline:
        timeline.span("trainer", "phase", "inner", 1.0, 2.0)
        timeline.span("trainer", "phase", "outer", 0.0, 10.0)
    (row,) = index_of(path).window(5.0, 6.0)["rows"]
    assert [bar[2] for bar in row["bars"]] == ["outer"]


def test_it_reads_on_while_the_run_writes(path: Path) -> None:
    timeline = Timeline(path, start_s=0.0)
    index = SpanIndex(path)
    for i in range(40):
        timeline.span("engine 0", "generate", "generate", i, i + 0.5)
    index.refresh()
    before = index.num_spans
    assert 20 <= before <= 40, "the last ones may not be written yet"
    timeline.span("engine 1", "generate", "generate", 40, 41)
    timeline.close()
    index.refresh()
    assert (index.num_spans, index.damaged) == (41, 0)
    assert index.wall == (0.0, 41.0)


def test_processes_are_in_the_order_in_which_data_flows(path: Path) -> None:
    with Timeline(path, start_s=0.0) as timeline:
        for process in ("trainer", "controller", "agents", "engine 10", "engine 2", "rewards", "evaluator", "a rival"):
            timeline.span(process, "step", "x", 0.0, 1.0)
    order = [row["process"] for row in index_of(path).window(0, 1)["rows"]]
    assert order == ["engine 2", "engine 10", "rewards", "agents", "trainer", "evaluator", "controller", "a rival"]


def test_time_in_common_agrees_with_counting_moments(path: Path) -> None:
    rng = random.Random(0)
    with Timeline(path, start_s=0.0) as timeline:
        for process in ("a", "b"):
            for start in rng.sample(range(60), 12):
                timeline.span(process, "t", "x", start, start + rng.randint(1, 4))
    index = index_of(path)
    a, b = (busy([track for track in index.tracks.values() if track.process == name]) for name in ("a", "b"))
    moments = np.arange(0, 70, 0.5) + 0.25

    def inside(of: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        return np.array([any(s < m < e for s, e in zip(*of, strict=True)) for m in moments])

    assert seconds(a) == pytest.approx(0.5 * inside(a).sum())
    assert common_s(a, b) == pytest.approx(0.5 * (inside(a) & inside(b)).sum())
