"""The page of a sweep of `freerun bench staleness`: one file that needs nothing beside it, and no script."""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from html import escape
from statistics import fmean, stdev
from typing import Protocol

from freerun.bench.staleness_picture import Curve, Line, curves, picture
from freerun.bench.staleness_run import OBJECTIVES, Check, Outcome
from freerun.core.text import counted
from freerun.observe.page import assets

LAYOUT = """
main { max-width: 1360px; margin: 0 auto; padding: 28px 24px 60px; } h2 { margin: 34px 0 6px; }
.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(420px, 1fr)); gap: 14px; }
.pictures svg { width: 100%; height: auto; border: 1px solid var(--line); border-radius: 8px; }
p { max-width: 78ch; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 3px 12px 3px 0; border-bottom: 1px solid var(--line); }
th:nth-child(2), td:nth-child(2) { text-align: left; }
"""
TIMES = """
In the sweep the engine and the learner take turns on one device, so that the age of the data can be held: a step takes
the time to generate its answers and then the time to train on them. "In turns" are these seconds, as measured, with
other runs beside them on the same device. What age buys is that the two go on at the same time. "At once" is what that
would come to with a device for each: for every step the longer of its two measured times, and at η = 0, where nothing
can go on at once, their sum. It is worked out from measured times, and leaves out whatever the two would take from each
other.
"""


class Described(Protocol):
    """The sweep, as far as the page tells of it."""

    @property
    def task(self) -> str: ...
    @property
    def model(self) -> str | None: ...
    @property
    def steps(self) -> int: ...
    @property
    def lr(self) -> float: ...
    @property
    def settings(self) -> list[str]: ...
    @property
    def device(self) -> str: ...


def page(sweep: Described, outcomes: list[Outcome]) -> str:
    """The page of a sweep of which at least one run is over."""
    title = f"Staleness: {sweep.task}"
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{assets.style()}{LAYOUT}</style></head><body><main>",
            f"<h1>{escape(title)}</h1>",
            f"<p>{escape(_about(sweep, outcomes))}</p>",
            *_by_age(sweep, outcomes),
            "<h2>As it rises</h2>",
            '<div class="pictures">',
            *(_rise(eta, [one for one in outcomes if one.eta == eta]) for eta in _etas(outcomes)),
            "</div>",
            "<h2>Figures</h2>",
            *_table(outcomes),
            "</main></body></html>\n",
        ]
    )


def _about(sweep: Described, outcomes: list[Outcome]) -> str:
    seeds = len({outcome.seed for outcome in outcomes})
    return (
        f"{sweep.model or 'a model of 0.1M parameters, made on the spot'}; lr {sweep.lr:g}; {sweep.device}; "
        f"{counted(seeds, 'seed')}, {counted(len(outcomes), 'run')}. {' '.join(sweep.settings)} Rewards are of "
        "held-out tasks, by the weights that a step ended with. Dots are runs, bars and bands a standard deviation "
        "either way."
    )


def _by_age(sweep: Described, outcomes: list[Outcome]) -> Iterator[str]:
    yield "<h2>Reward against age</h2>"
    yield '<div class="pictures">'
    yield _against_eta(outcomes, lambda one: one.reward, f"After {sweep.steps} steps")
    yield _after_seconds(outcomes, _in_turns, "in turns")
    yield _after_seconds(outcomes, _at_once, "at once")
    yield "</div>"
    yield f"<p>{escape(TIMES.strip())}</p>"


def _after_seconds(outcomes: list[Outcome], seconds: Callable[[Check], float], name: str) -> str:
    """As many as the fastest run took for all of its steps."""
    shared = min(seconds(outcome.checks[-1]) for outcome in outcomes)
    return _against_eta(outcomes, lambda one: reward_at(one, seconds, shared), f"After {shared:.3g} s {name}")


def _in_turns(check: Check) -> float:
    return check.in_turns_s


def _at_once(check: Check) -> float:
    return check.at_once_s


def reward_at(outcome: Outcome, seconds: Callable[[Check], float], time_s: float) -> float:
    """On the line between the two checks before and after."""
    times = [seconds(check) for check in outcome.checks]
    place = min(max(bisect_left(times, time_s), 1), len(times) - 1)
    before, after = outcome.checks[place - 1], outcome.checks[place]
    share = (time_s - times[place - 1]) / ((times[place] - times[place - 1]) or 1.0)
    return before.reward + min(max(share, 0.0), 1.0) * (after.reward - before.reward)


def _against_eta(outcomes: list[Outcome], reward: Callable[[Outcome], float], title: str) -> str:
    etas = _etas(outcomes)
    lines = [
        Line(name, [[reward(one) for one in outcomes if (one.objective, one.eta) == (objective, eta)] for eta in etas])
        for objective, name in _objectives(outcomes)
    ]
    return picture(etas, lines, title)


def _rise(eta: int, outcomes: list[Outcome]) -> str:
    lines = []
    for objective, name in _objectives(outcomes):
        runs = [one.checks for one in outcomes if one.objective == objective]
        at = [float(check.step) for check in runs[0]]
        lines.append(Curve(name, at, [[check.reward for check in checks] for checks in zip(*runs, strict=True)]))
    return curves(lines, f"η = {eta}", "steps")


def _table(outcomes: list[Outcome]) -> Iterator[str]:
    columns: list[tuple[str, Callable[[Outcome], float], str]] = [
        ("reward", lambda one: one.reward, ".3f"),
        ("drift", lambda one: one.drift, ".3f"),
        ("outside ±0.2", lambda one: one.outside_share, ".1%"),
        ("effective", lambda one: one.effective_samples, ".0%"),
        ("kept", lambda one: one.kept_share, ".0%"),
        ("clipped", lambda one: one.clip_share, ".1%"),
        ("entropy", lambda one: one.entropy, ".3f"),
        ("tokens an answer", lambda one: one.answer_tokens, ".0f"),
        ("generate, s a step", lambda one: one.generate_s, ".2f"),
        ("train, s a step", lambda one: one.train_s, ".2f"),
    ]
    head = "".join(f"<th>{escape(name)}</th>" for name, _, _ in columns)
    yield f"<table><thead><tr><th>η</th><th>objective</th><th>runs</th>{head}</tr></thead><tbody>"
    for eta in _etas(outcomes):
        for objective, name in _objectives(outcomes):
            found = [one for one in outcomes if (one.eta, one.objective) == (eta, objective)]
            if not found:
                continue
            cells = [f"{fmean(map(value, found)):{how}}" for _, value, how in columns]
            if len(found) > 1:
                cells[0] += f" ± {stdev(one.reward for one in found):.3f}"
            row = "".join(f"<td>{escape(cell)}</td>" for cell in (str(eta), name, str(len(found)), *cells))
            yield f"<tr>{row}</tr>"
    yield "</tbody></table>"
    yield (
        "<p>Drift is the mean |log π_proximal / π_behavior| of a token before the step; outside, tokens beyond 1 ± 0.2 "
        "by that ratio; effective, (Σρ)² / (n Σρ²) of it; kept, by the corrections; clipped, tokens without gradient "
        "by the clip. Of the second half of a run.</p>"
    )


def _etas(outcomes: list[Outcome]) -> list[int]:
    return sorted({outcome.eta for outcome in outcomes})


def _objectives(outcomes: list[Outcome]) -> list[tuple[str, str]]:
    there = {outcome.objective for outcome in outcomes}
    return [(objective, name) for objective, name in OBJECTIVES.items() if objective in there]
