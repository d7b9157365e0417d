"""The outcome of a run in figures and in one sentence, computed from its records. Pure functions, no files."""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from freerun.core.records import AgentRecord, StepRecord
from freerun.core.reports import Span
from freerun.observe.figures import duration, number, share
from freerun.observe.records import EvalRecord

Interval = tuple[float, float]


@dataclass(frozen=True)
class Trend:
    """A noisy curve's two ends: the means of its first and last `window` values."""

    first: float
    last: float
    window: int
    moved: bool
    """Whether the ends differ by more than twice the standard error of their difference."""

    @property
    def verb(self) -> str:
        if not self.moved:
            return "stayed about level, from"
        return "rose from" if self.last > self.first else "fell from"


@dataclass(frozen=True)
class Overlap:
    """How much of the time engines and trainer were busy, and busy at once."""

    wall: Interval
    """From the first generation or training to the last, in seconds of the timeline."""
    both: list[Interval]
    """When at least one engine and the trainer were busy."""
    engine_s: float
    """Busy seconds of an engine, mean over engines."""
    trainer_s: float

    @property
    def wall_s(self) -> float:
        return self.wall[1] - self.wall[0]

    @property
    def both_s(self) -> float:
        return total(self.both)

    @property
    def share(self) -> float:
        return self.both_s / self.wall_s if self.wall_s > 0 else 0.0


@dataclass(frozen=True)
class Summary:
    steps: int
    duration_s: float
    reward: Trend | None
    """The trend of `reward_mean_all`: filtering flatters or hides that of what was trained on."""
    tokens_trained: int
    tokens_per_s: float
    staleness_mean: float
    staleness_max: int
    staleness_histogram: dict[int, int]
    dropped: dict[str, int]
    judge_failures: dict[str, int]
    engine_idle_share: float
    trainer_idle_share: float
    truncated_share: float
    """The mean over the last steps, as many as `reward.window`."""
    overlap: Overlap | None
    cache_hit_share: float
    """The mean over the last steps, too."""
    agents: AgentRecord | None
    """Counts of the whole run, and means over the last steps; None without agents."""


def summarise(steps: list[StepRecord], evals: list[EvalRecord], spans: list[Span]) -> Summary:
    wall_s = sum(s.step_s for s in steps)
    tokens = sum(s.tokens_trained for s in steps)
    histogram: Counter[int] = Counter()
    for s in steps:
        histogram.update({int(age): n for age, n in s.staleness_histogram.items()})
    reward = trend([s.reward_mean_all for s in steps])
    last = steps[-(reward.window if reward else 1) :]
    ends_s = [s.time_s for s in steps] + [e.time_s for e in evals] + [s.end_s for s in spans]
    return Summary(
        steps=steps[-1].step if steps else 0,
        duration_s=max(ends_s, default=0.0),
        reward=reward,
        tokens_trained=tokens,
        tokens_per_s=tokens / wall_s if wall_s > 0 else 0.0,
        staleness_mean=_weighted_mean(histogram),
        staleness_max=max((s.staleness_max for s in steps), default=0),
        staleness_histogram=dict(sorted(histogram.items())),
        dropped=steps[-1].dropped if steps else {},
        judge_failures=steps[-1].judge_failures if steps else {},
        engine_idle_share=sum(s.engine_idle_s for s in steps) / wall_s if wall_s > 0 else 0.0,
        trainer_idle_share=sum(s.trainer_idle_s for s in steps) / wall_s if wall_s > 0 else 0.0,
        truncated_share=mean([s.truncated_share for s in last]),
        overlap=overlap(spans),
        cache_hit_share=mean([s.cache_hit_share for s in last]),
        agents=_agents(steps, last),
    )


def _agents(steps: list[StepRecord], last: list[StepRecord]) -> AgentRecord | None:
    told, told_last = ([s.agents for s in part if s.agents] for part in (steps, last))
    if not told:
        return None
    return replace(
        told[-1],
        turns_mean=mean([agents.turns_mean for agents in told_last]),
        branches_mean=mean([agents.branches_mean for agents in told_last]),
        reread_tokens=sum(agents.reread_tokens for agents in told),
    )


def outcome(summary: Summary, bound: int | None) -> str:
    """The run in one or two sentences."""
    took = duration(summary.duration_s)
    if not summary.steps:
        return f"No training step was completed in {took}." if summary.duration_s else "Nothing was recorded."
    steps = f"{summary.steps} step{'s' if summary.steps > 1 else ''}"
    if summary.reward is None:
        said = f"{steps} in {took}, and no sample was judged"
    elif summary.reward.window == 0:
        said = f"One step in {took}, at a reward of {number(summary.reward.first)}"
    else:
        r = summary.reward
        said = f"Reward {r.verb} {number(r.first)} to {number(r.last)} in {steps} and {took}"
    if summary.overlap:
        said += f", with generation and training running at the same time for {share(summary.overlap.share)} of it"
    return f"{said}. {_verdict(summary, bound)}".strip()


def _verdict(summary: Summary, bound: int | None) -> str:
    if bound is None or not summary.staleness_histogram:
        return ""
    if summary.staleness_max > bound:
        return f"The staleness bound of {bound} was broken: a token was trained on at {summary.staleness_max}."
    return f"No token was trained on past the staleness bound of {bound}."


def trend(values: list[float]) -> Trend | None:
    """None without any value. A single value is its own trend, with a window of 0."""
    known = [v for v in values if math.isfinite(v)]
    if not known:
        return None
    if len(known) == 1:
        return Trend(known[0], known[0], window=0, moved=False)
    window = max(1, min(20, len(known) // 5))
    first, last = mean(known[:window]), mean(known[-window:])
    unit = max(*map(abs, known), 1.0)  # squares of what is huge would be too large for a float
    # The variance of one value, from neighbours: a slow trend adds nothing to it, unlike to the plain variance.
    variance = mean([(b / unit - a / unit) ** 2 / 2 for a, b in pairwise(known)])
    moved = abs(last / unit - first / unit) > 2 * math.sqrt(2 * variance / window) + 1e-9 / unit
    return Trend(first, last, window, moved)


def overlap(spans: Iterable[Span]) -> Overlap | None:
    """None unless something was generated or trained."""
    engines: dict[str, list[Interval]] = defaultdict(list)
    trainer: list[Interval] = []
    for span in spans:
        if span.process.startswith("engine") and span.track == "generate":
            engines[span.process].append((span.start_s, span.end_s))
        elif span.process == "trainer" and span.track == "step":
            trainer.append((span.start_s, span.end_s))
    generating = union(interval for busy in engines.values() for interval in busy)
    training = union(trainer)
    if not generating and not training:
        return None
    return Overlap(
        wall=(min(i[0] for i in generating + training), max(i[1] for i in generating + training)),
        both=intersection(generating, training),
        engine_s=mean([total(union(busy)) for busy in engines.values()]) if engines else 0.0,
        trainer_s=total(training),
    )


def union(intervals: Iterable[Interval], gap_s: float = 0.0) -> list[Interval]:
    """The same time without overlaps, in order; gaps up to `gap_s` are closed."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start - merged[-1][1] <= gap_s:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def intersection(a: list[Interval], b: list[Interval]) -> list[Interval]:
    """What two unions share."""
    shared: list[Interval] = []
    i = j = 0
    while i < len(a) and j < len(b):
        start, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < end:
            shared.append((start, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return shared


def total(intervals: list[Interval]) -> float:
    return math.fsum(end - start for start, end in intervals)


def mean(values: Sequence[float]) -> float:
    """The mean of the values that are known, NaN if none is. It is right where the sum is too large for a float."""
    known = [v for v in values if math.isfinite(v)]
    if not known:
        return math.nan
    largest = max(map(abs, known))
    return statistics.fmean(known) if largest < 1e200 else statistics.fmean(v / largest for v in known) * largest


def _weighted_mean(histogram: Counter[int]) -> float:
    tokens = histogram.total()
    return sum(age * n for age, n in histogram.items()) / tokens if tokens else math.nan
