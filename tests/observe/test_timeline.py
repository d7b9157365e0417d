import json
from pathlib import Path
from typing import Any

import pytest

from freerun.observe.timeline import FLUSH_EVENTS, Timeline, read_spans, read_timeline


def of_kind(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == kind]


def test_a_closed_timeline_is_strict_json_with_names_and_microseconds(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    with Timeline(path, start_s=100.0) as timeline:
        timeline.span("engine 0", "generate", "generate", 100.5, 102.0, running=3)
        timeline.span("trainer", "step", "step 1", 101.0, 103.0)
        timeline.counter("engine 0", "running", 101.5, 7)
        timeline.instant("controller", "notes", "restart", 101.75, engine=0)
    events = json.loads(path.read_text())
    names = [(e["name"], e["args"]["name"]) for e in of_kind(events, "M") if "name" in e["args"]]
    assert names == [
        ("process_name", "engine 0"),
        ("thread_name", "generate"),
        ("process_name", "trainer"),
        ("thread_name", "step"),
        ("process_name", "controller"),
        ("thread_name", "notes"),
    ]
    generate, step = of_kind(events, "X")
    assert (generate["ts"], generate["dur"], generate["args"]) == (500_000, 1_500_000, {"running": 3})
    assert (step["ts"], step["dur"]) == (1_000_000, 2_000_000)
    assert generate["pid"] != step["pid"]
    (counter,) = of_kind(events, "C")
    assert (counter["ts"], counter["args"], counter["pid"]) == (1_500_000, {"running": 7}, generate["pid"])
    assert of_kind(events, "i")[0]["ts"] == 1_750_000


def test_processes_are_ordered_as_data_flows(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    with Timeline(path, start_s=0.0) as timeline:
        for process in ["evaluator", "trainer", "engine 10", "engine 2", "controller"]:
            timeline.span(process, "t", "s", 0.0, 1.0)
    events = read_timeline(path)
    name_of = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    order = {name_of[e["pid"]]: e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"}
    assert sorted(order, key=lambda p: order[p]) == ["controller", "engine 2", "engine 10", "trainer", "evaluator"]


def test_an_unclosed_timeline_is_readable_up_to_the_last_flush(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    timeline = Timeline(path, start_s=0.0)
    for i in range(3 * FLUSH_EVENTS):
        timeline.span("trainer", "step", f"step {i}", float(i), i + 0.5)
    with pytest.raises(json.JSONDecodeError):
        json.loads(path.read_text())
    assert len(read_spans(path)) > 2 * FLUSH_EVENTS
    timeline.close()
    timeline.close()
    assert len(read_spans(path)) == 3 * FLUSH_EVENTS


def test_any_prefix_of_a_timeline_is_readable(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    with Timeline(path, start_s=0.0) as timeline:
        timeline.span("trainer", "step", "one, [two], {three}", 0.0, 1.0)
        timeline.span("trainer", "step", "next", 1.0, 2.0)
    raw = path.read_bytes()
    counts = []
    for size in range(len(raw)):
        path.write_bytes(raw[:size])
        counts.append(len(read_timeline(path)))
    assert counts == sorted(counts)
    assert counts[-1] == 5


def test_a_missing_or_empty_timeline_has_no_events(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    assert read_timeline(path) == []
    Timeline(path).close()
    assert json.loads(path.read_text()) == []


@pytest.mark.parametrize("killed", [False, True])
def test_a_resumed_run_continues_the_file_where_it_ended(tmp_path: Path, killed: bool) -> None:
    path = tmp_path / "timeline.json"
    with Timeline(path, start_s=50.0) as first:
        first.span("trainer", "step", "step 1", 50.0, 54.0)
    if killed:
        path.write_text(path.read_text().removesuffix("\n]\n") + ',\n{"ph": "X", "na')
    with Timeline(path, start_s=1000.0) as second:
        second.span("trainer", "step", "step 2", 1001.0, 1002.0)
        second.span("engine 0", "generate", "generate", 1001.0, 1002.0)
    events = json.loads(path.read_text())
    assert len([e for e in events if e["name"] == "process_name"]) == 2
    assert [(s.process, s.start_s) for s in read_spans(path)] == [("trainer", 0.0), ("trainer", 5.0), ("engine 0", 5.0)]


def test_what_began_before_the_timeline_is_cut_at_its_start(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    with Timeline(path, start_s=10.0) as timeline:
        timeline.span("engine 0", "load", "load", 8.0, 11.0)
    (span,) = read_spans(path)
    assert (span.start_s, span.end_s) == (0.0, 1.0)
