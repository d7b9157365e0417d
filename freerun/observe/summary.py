"""The outcome of a run in figures and in one sentence, worked out from its columns. No files."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from freerun.core.records import AgentRecord
from freerun.observe.columns import StepColumns
from freerun.observe.figures import duration, number, share
from freerun.observe.spans import SpanIndex, busy, common_s, seconds


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

    wall_s: float
    """From the first generation or training to the last."""
    both_s: float
    engine_s: float
    """Busy seconds of an engine, mean over engines."""
    trainer_s: float

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
    truncated_share: float
    """The mean over the last steps, as many as `reward.window`."""
    overlap: Overlap | None
    cache_hit_share: float
    """The mean over the last steps, too."""
    agents: AgentRecord | None
    """Counts of the whole run, and means over the last steps; None without agents."""
    loss: Trend | None
    """How supervised training went, which has no rewards."""


def summarise(columns: StepColumns, spans: SpanIndex, last_eval_s: float = 0.0) -> Summary:
    """`last_eval_s` is when the last evaluation ended."""
    wall_s, tokens = columns.total("step_s"), columns.total("tokens_trained")
    counted = {int(age): int(sum_of(counts.tolist())) for age, counts in columns.family("staleness_histogram/").items()}
    histogram = dict(sorted((age, count) for age, count in counted.items() if count))
    reward = trend(columns.column("reward_mean_all").tolist())
    window = reward.window if reward and reward.window else 1
    judged = {name: int(columns.last(f"judgements/{name}", 0)) for name in columns.family("judgements/")}
    return Summary(
        steps=columns.steps[-1] if columns.steps else 0,
        duration_s=max(columns.last("time_s", 0.0), last_eval_s, spans.end_s),
        reward=reward,
        tokens_trained=int(tokens),
        tokens_per_s=tokens / wall_s if wall_s > 0 else 0.0,
        staleness_mean=_weighted_mean(histogram),
        staleness_max=max(histogram, default=0),
        staleness_histogram=histogram,
        dropped={name: int(columns.last(f"dropped/{name}", 0)) for name in columns.family("dropped/")},
        judge_failures={name: count for name, count in judged.items() if name not in ("ok", "unparseable")},
        truncated_share=mean(columns.column("truncated_share").tolist()[-window:]),
        overlap=overlap(spans),
        cache_hit_share=mean(columns.column("cache_hit_share").tolist()[-window:]),
        agents=_agents(columns, window),
        loss=trend(columns.column("trainer/loss").tolist()) if reward is None and not judged else None,
    )


def _agents(columns: StepColumns, window: int) -> AgentRecord | None:
    if "agents/requests" not in columns.names:
        return None

    def counts(prefix: str) -> dict[str, int]:
        every = {name: columns.last(prefix + name, 0.0) for name in columns.family(prefix)}
        return {name: int(count) for name, count in every.items() if count and math.isfinite(count)}

    return AgentRecord(
        sessions=counts("agents/sessions/"),
        requests=int(columns.last("agents/requests", 0.0)),
        turns_mean=mean(columns.column("agents/turns_mean").tolist()[-window:]),
        branches_mean=mean(columns.column("agents/branches_mean").tolist()[-window:]),
        forks=counts("agents/forks/"),
        unused=counts("agents/unused/"),
        reread_tokens=int(columns.total("agents/reread_tokens")),
    )


def outcome(summary: Summary, bound: int | None) -> str:
    """The run in one or two sentences."""
    took = duration(summary.duration_s)
    if not summary.steps:
        return f"No training step was completed in {took}." if summary.duration_s else "Nothing was recorded yet."
    return f"{_said(summary, took)}. {_verdict(summary, bound)}".strip()


def _said(summary: Summary, took: str) -> str:
    steps = f"{summary.steps} step{'s' if summary.steps > 1 else ''}"
    if summary.reward is None and summary.loss and summary.loss.window:
        return (
            f"Loss {summary.loss.verb} {number(summary.loss.first)} to {number(summary.loss.last)} in {steps}, {took}"
        )
    if summary.reward is None:
        said = f"{steps} in {took}, and no sample was judged"
    elif summary.reward.window == 0:
        said = f"One step in {took}, at a reward of {number(summary.reward.first)}"
    else:
        r = summary.reward
        said = f"Reward {r.verb} {number(r.first)} to {number(r.last)} in {steps} and {took}"
    if summary.overlap:
        said += f", with generation and training running at the same time for {share(summary.overlap.share)} of it"
    return said


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


def overlap(spans: SpanIndex) -> Overlap | None:
    """None unless something was generated or trained."""
    engines = [t for t in spans.tracks.values() if t.process.startswith("engine") and t.name == "generate" and t.starts]
    trainer = [t for t in spans.tracks.values() if t.process == "trainer" and t.name == "step" and t.starts]
    if not engines and not trainer:
        return None
    generating, training = busy(engines), busy(trainer)
    ends = [float(of[1][-1]) for of in (generating, training) if len(of[1])]
    starts = [float(of[0][0]) for of in (generating, training) if len(of[0])]
    return Overlap(
        wall_s=max(ends) - min(starts),
        both_s=common_s(generating, training),
        engine_s=mean([seconds(engine.merged()) for engine in engines]) if engines else 0.0,
        trainer_s=seconds(training),
    )


def mean(values: Sequence[float]) -> float:
    """The mean of the values that are known, NaN if none is. It is right where the sum is too large for a float."""
    known = [v for v in values if math.isfinite(v)]
    if not known:
        return math.nan
    largest = max(map(abs, known))
    return statistics.fmean(known) if largest < 1e200 else statistics.fmean(v / largest for v in known) * largest


def sum_of(values: Sequence[float]) -> float:
    """The sum of those that are known."""
    return math.fsum(v for v in values if math.isfinite(v))


def _weighted_mean(histogram: dict[int, int]) -> float:
    tokens = sum(histogram.values())
    return sum(age * n for age, n in histogram.items()) / tokens if tokens else math.nan
