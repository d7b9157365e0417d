"""What the report's charts are drawn from: a run's records reduced to a size a browser likes.

However long the run, the page stays a few megabytes: curves are averaged to `POINTS`; past `SPANS`, spans far from the
middle of the run are merged; of the samples a few are kept (`shown_samples.py`). What was reduced is said on the page.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from freerun.core.records import StepRecord
from freerun.core.reports import Span
from freerun.observe.folder import encode
from freerun.observe.records import EvalRecord
from freerun.observe.shown_samples import pick_samples
from freerun.observe.summary import Interval, Overlap, Summary, mean, union

POINTS = 1200
SPANS = 30_000
ENGINES = 8
WINDOW_STEPS = 8

T = TypeVar("T")


def payload(
    summary: Summary,
    steps: list[StepRecord],
    evals: list[EvalRecord],
    spans: list[Span],
    samples: Path,
    bound: int | None,
) -> dict[str, Any]:
    return {
        "bound": bound,
        "curves": curves(steps),
        "evals": evals,
        "histogram": list(summary.staleness_histogram.items()),
        "timeline": timeline(spans, summary.overlap) if summary.overlap else None,
        "samples": pick_samples(samples),
    }


def to_script(data: Any) -> str:
    """JSON that may stand inside a <script> element, whatever text it holds."""
    text = encode(data).decode()
    for risky in "<>&\u2028\u2029":
        text = text.replace(risky, f"\\u{ord(risky):04x}")
    return text


def curves(steps: list[StepRecord]) -> dict[str, Any]:
    """Columns for drawing; `each` is how many steps one point stands for."""
    each = max(math.ceil(len(steps) / POINTS), 1)
    keys = sorted({key for s in steps for key in s.trainer}, key=_interest)

    def column(values: Iterable[float]) -> list[float]:
        return [_mean(part) for part in _parts(list(values), each)]

    return {
        "each": each,
        "step": [part[-1].step for part in _parts(steps, each)],
        "time_s": [part[-1].time_s for part in _parts(steps, each)],
        "reward_mean": column(s.reward_mean for s in steps),
        "reward_mean_all": column(s.reward_mean_all for s in steps),
        "staleness_mean": column(s.staleness_mean for s in steps),
        "staleness_max": [max(s.staleness_max for s in part) for part in _parts(steps, each)],
        "tokens_per_s": column(s.tokens_per_s for s in steps),
        "step_s": column(s.step_s for s in steps),
        "update_pause_s": column(s.update_pause_s for s in steps),
        "engine_idle": column(s.engine_idle_share for s in steps),
        "trainer_idle": column(s.trainer_idle_share for s in steps),
        "truncated_share": column(s.truncated_share for s in steps),
        "answer_tokens_mean": column(s.answer_tokens_mean for s in steps),
        "running": column(float(s.running) for s in steps),
        "waiting": column(float(s.waiting) for s in steps),
        "cache_hit_share": column(s.cache_hit_share for s in steps),
        "turns_mean": column(s.agents.turns_mean if s.agents else math.nan for s in steps),
        "branches_mean": column(s.agents.branches_mean if s.agents else math.nan for s in steps),
        "trainer": {key: column(s.trainer.get(key, math.nan) for s in steps) for key in keys},
    }


def timeline(spans: list[Span], busy: Overlap) -> dict[str, Any]:
    """Rows top to bottom, a span being [start, end, name, args]; and the window to open with."""
    engines = sorted({s.process for s in spans if s.process.startswith("engine")}, key=_natural)
    wanted = [(engine, "generate") for engine in engines[:ENGINES]]
    kept = [s for s in spans if (s.process, s.track) in {*wanted, *((e, "update") for e, _ in wanted)}]
    others = [s for s in spans if s.process in {"trainer", "controller", "evaluator"}]
    detail = stretch_in_detail(kept + others, busy.wall)

    def row(label: str, kind: str, chosen: list[Span], updates: list[Span] | None = None) -> dict[str, Any]:
        return {
            "label": label,
            "kind": kind,
            "spans": _drawn(chosen, detail, busy.wall_s),
            "updates": _drawn(updates or [], detail, busy.wall_s),
        }

    def on(process: str, track: str) -> list[Span]:
        return [s for s in kept + others if s.process == process and s.track == track]

    rows = [row(engine, "generate", on(engine, "generate"), on(engine, "update")) for engine, _ in wanted]
    rows.append(row("trainer", "train", on("trainer", "step")))
    rows.append(row("both busy", "both", [Span("", "both busy", start, end) for start, end in busy.both]))
    rows.append(row("evaluator", "eval", [s for s in others if s.process == "evaluator"]))
    rows.append(row("controller waits", "wait", on("controller", "wait")))
    return {
        "wall": _rounded(busy.wall),
        "window": _rounded(opening_window(on("trainer", "step"), busy.wall)),
        "rows": [r for r in rows if r["spans"] or r["updates"]],
        "engines_left_out": max(len(engines) - ENGINES, 0),
        "detail": _rounded(detail) if detail else None,
    }


def opening_window(trained: list[Span], wall: Interval) -> Interval:
    """The middle few steps, where nothing is warming up or draining; the whole of a short run."""
    if len(trained) <= WINDOW_STEPS:
        return wall
    middle_s = (wall[0] + wall[1]) / 2
    after = sum(s.start_s < middle_s for s in trained)
    first = min(max(after - WINDOW_STEPS // 2, 0), len(trained) - WINDOW_STEPS - 1)
    return trained[first].start_s, trained[first + WINDOW_STEPS].start_s


def stretch_in_detail(spans: list[Span], wall: Interval) -> Interval | None:
    """The part around the middle whose spans are all drawn; None where that is the whole run."""
    if len(spans) <= SPANS:
        return None
    middle = (wall[0] + wall[1]) / 2
    reach = sorted(abs(s.start_s - middle) for s in spans)[SPANS // 2]
    return middle - reach, middle + reach


def _drawn(spans: list[Span], detail: Interval | None, wall_s: float) -> list[list[Any]]:
    """[start, end, name, args]; outside of `detail` merged to what a screen can tell apart, and without a name."""

    def merged(part: Iterable[Span]) -> list[list[Any]]:
        return [[*_rounded(i), "", {}] for i in union(((s.start_s, s.end_s) for s in part), wall_s / 5_000)]

    whole = [[*_rounded((s.start_s, s.end_s)), s.name, s.args] for s in spans if detail is None or _within(s, detail)]
    if detail is None:
        return whole
    before = merged(s for s in spans if s.start_s < detail[0])
    return before + whole + merged(s for s in spans if s.start_s > detail[1])


def _within(span: Span, stretch: Interval) -> bool:
    return stretch[0] <= span.start_s <= stretch[1]


def _rounded(interval: Interval) -> list[float]:
    return [round(interval[0], 4), round(interval[1], 4)]


def _parts(values: Sequence[T], size: int) -> list[Sequence[T]]:
    return [values[i : i + size] for i in range(0, len(values), size)]


def _mean(values: Sequence[float]) -> float:
    return float(f"{mean(values):.6g}")


def _interest(key: str) -> tuple[int, str]:
    """What people look at first comes first; the rest by name."""
    known = ["loss", "entropy", "grad_norm", "kl", "clip_share", "lr"]
    return (known.index(key) if key in known else len(known), key)


def _natural(process: str) -> tuple[int, str]:
    number = process.removeprefix("engine").strip()
    return (int(number) if number.isdigit() else 1 << 30, process)
