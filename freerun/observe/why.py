"""What holds a run up: one bottleneck by name, with its share of the time, and which setting to change to what.

Reads shares of time (`time_shares.py`) and the run's settings, by dotted key. Values that it names follow from figures.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from freerun.core.waits import WaitCause
from freerun.observe.columns import StepColumns
from freerun.observe.figures import count, duration, share
from freerun.observe.time_shares import TimeShares, time_shares

Settings = Mapping[str, Any]
MOST_COST = 0.5
"""A run whose bottleneck cost more of its time than this says so in the end, unless it is what a run is for."""
ENOUGH_STEPS = 10
_SMALL = 0.01
_COMPUTES = 0.5

CAUSES = {
    WaitCause.GENERATION: "answers that are being generated",
    WaitCause.AGENTS: "agents that ask nothing of the engines",
    WaitCause.JUDGING: "judging",
    WaitCause.BOUND: "groups that the staleness bound wants first",
    WaitCause.WEIGHTS: "engines that take new weights",
    WaitCause.CHECKPOINT: "a checkpoint's copy",
    WaitCause.NO_ENGINE: "an engine, when none was there",
}
HOLDS = {
    WaitCause.ENGINES: "engines were full",
    WaitCause.AHEAD: "enough was on its way to the trainer",
    WaitCause.JUDGING: "answers queued for the judge",
    WaitCause.BOUND: "control.max_staleness admitted nothing, or all of the run was begun",
}


@dataclass(frozen=True)
class Why:
    """What `freerun why` and the page say."""

    figures: list[str] = field(default_factory=list)
    """Who spent what share of the time on what, a line each."""
    bottleneck: str = ""
    """Such as `judging`, with its share."""
    advice: list[str] = field(default_factory=list)
    share: float = 0.0
    costs: bool = False
    """Whether it is time lost, and not what a run is for."""

    @property
    def lines(self) -> list[str]:
        named = [f"bottleneck: {self.bottleneck}"] if self.bottleneck else []
        return [*self.figures, *named, *(f"  -> {line}" for line in self.advice)]


def why(shares: TimeShares | None, settings: Settings) -> Why:
    if shares is None:
        return Why()
    name, part, advise, costs = _bottleneck(shares)
    said = f"{name}, {share(part)} of the time"
    return Why(list(_figures(shares)), said, list(advise(shares, settings)), part, costs)


def cost_most(metrics: Iterable[bytes], settings: Iterable[tuple[str, Any]]) -> str | None:
    """A note for the end of a run that spent most of its time waiting for what a setting could have changed. `metrics`
    are the lines of its file."""
    columns = StepColumns()
    for line in metrics:
        columns.add(line)
    shares = time_shares(columns)
    found = why(shares, dict(settings))
    if shares is None or shares.last_step - shares.first_step < ENOUGH_STEPS - 1:
        return None
    if not found.costs or found.share <= MOST_COST or not found.advice:
        return None
    return f"the run's bottleneck was {found.bottleneck}: {found.advice[0]}; `freerun why` has the figures"


Advise = Callable[[TimeShares, Settings], Iterator[str]]


def _bottleneck(shares: TimeShares) -> tuple[str, float, Advise, bool]:
    """Its name and share of the time, what to do, and whether it is time lost."""
    parts: list[tuple[float, str, Advise, bool]] = [(shares.learning, "the trainer", _learn_faster, False)]
    generation, bound = shares.waits(WaitCause.GENERATION), shares.waits(WaitCause.BOUND)
    held = shares.admission.get(WaitCause.BOUND, 0.0)
    if not shares.waiting:
        idle = shares.engines_idle > MOST_COST
        slow = ("judging, or agents", _judge_faster, True) if idle else _GENERATION
        parts.append((shares.trainer_waits, *slow))
    if min(generation, shares.engines_idle, held) > 0.15:  # they take turns: what one does, the other waits for
        parts.append((generation + min(shares.learning, held), *_BOUND))
    elif generation + bound:
        old = bound > generation
        parts.append((generation + bound, *(_BOUND if old else _GENERATION)))
    parts += [
        (shares.waits(WaitCause.JUDGING), "judging", _judge_faster, True),
        (shares.waits(WaitCause.WEIGHTS), "new weights", _update_faster, True),
        (shares.waits(WaitCause.CHECKPOINT), "checkpoints", _save_less, True),
        (shares.waits(WaitCause.AGENTS), "agents", _more_sessions, True),
        (shares.waits(WaitCause.NO_ENGINE), "engines that were lost", _look_at_logs, True),
    ]
    part, name, advise, costs = max(parts, key=lambda one: one[0])
    return name, min(part, 1.0), advise, costs


def _figures(shares: TimeShares) -> Iterator[str]:
    yield f"steps {shares.first_step} to {shares.last_step}, {duration(shares.seconds)}, {_s(shares.step_s)} a step"
    waits = _parts(shares.waiting, CAUSES)
    waited = f" · waits {share(shares.trainer_waits)}" if shares.trainer_waits >= _SMALL else ""
    yield f"trainer   learns {share(shares.learning)}{waited}{f' ({waits})' if waits else ''}"
    held = _parts(shares.admission, HOLDS)
    because = f" · nothing more was begun because {held}" if held and shares.engines_idle >= _SMALL else ""
    yield f"engines   generate {share(1 - shares.engines_idle)} · idle {share(shares.engines_idle)}{because}"
    if judges := shares.judges:
        waited = f", and waits {_s(shares.judge_wait_s)} for a worker" if shares.judge_wait_s >= 1e-3 else ""
        workers = f"{judges.workers} worker{'s' * (judges.workers > 1)}"
        yield f"judges    {workers}, busy {share(shares.judges_busy)}; an answer takes {_s(judges.judge_s)}{waited}"


def _parts(parts: Mapping[WaitCause, float], words: Mapping[WaitCause, str]) -> str:
    """The largest first."""
    known = sorted(((part, cause) for cause, part in parts.items() if part >= _SMALL and cause in words), reverse=True)
    return ", ".join(f"{share(part)} {words[cause]}" for part, cause in known)


def _judge_faster(shares: TimeShares, settings: Settings) -> Iterator[str]:
    judges = shares.judges
    if judges is None:
        yield "raise reward.workers"
        return
    if judges.cpu_share > _COMPUTES:
        yield (
            f"the judge computes for {share(judges.cpu_share)} of its {_s(judges.judge_s)} an answer: make it faster, "
            f"or give it processors, for reward.workers={_workers(shares)} here or with reward.where=machines"
        )
    else:
        yield f"reward.workers={_workers(shares)}: an answer takes {_s(judges.judge_s)}, mostly waiting"


def _workers(shares: TimeShares) -> int:
    """As many as judge a step's answers in the time that everything else takes."""
    assert shares.judges
    return shares.judges.enough_workers(shares.step_s * (1.0 - shares.waits(WaitCause.JUDGING)))


def _allow_older(shares: TimeShares, settings: Settings) -> Iterator[str]:
    bound = settings.get("control.max_staleness")
    bound = bound if isinstance(bound, int) else 0
    if bound == 0:
        yield "control.max_staleness=2: generation and training take turns at 0, and go on at the same time from 1 on"
        return
    waits = shares.waits(WaitCause.GENERATION, WaitCause.BOUND)
    more = min(bound + max(math.ceil(waits / max(shares.learning, 0.1)), 1), 4 * bound, 16)
    yield f"control.max_staleness={more}: more may be generated while the oldest answers come to their end"
    if settings.get("control.when_stale") == "wait":
        yield "control.when_stale=mask, which waits for no single answer"
    yield from _shorter(shares, settings)


def _shorter(shares: TimeShares, settings: Settings) -> Iterator[str]:
    longest = settings.get("rollout.max_new_tokens")
    if isinstance(longest, int) and longest >= 64 and shares.answer_tokens < longest / 4:
        yield (
            f"rollout.max_new_tokens={2 ** math.ceil(math.log2(max(2 * shares.answer_tokens, 16)))}: answers have "
            f"{count(shares.answer_tokens)} tokens on average, and the longest may have {longest}"
        )


def _generate_faster(shares: TimeShares, settings: Settings) -> Iterator[str]:
    running = settings.get("engine.max_running")
    if shares.admission.get(WaitCause.ENGINES, 0.0) > 0.5 and isinstance(running, int):
        yield f"engine.max_running={2 * running}: engines were full, and larger batches cost little more a token"
    engines = settings.get("resources.engines")
    needed = math.ceil((engines if isinstance(engines, int) else 1) / max(shares.learning, 0.1))
    yield f"resources.engines={needed}, or more GPUs under resources.engine_gpus, would keep up with the trainer"
    yield from _shorter(shares, settings)


def _learn_faster(shares: TimeShares, settings: Settings) -> Iterator[str]:
    if shares.engines_idle > MOST_COST:
        yield (
            f"engines are idle for {share(shares.engines_idle)}: give the trainer GPUs of theirs "
            "(resources.trainer_gpus), or more threads on CPUs (resources.threads)"
        )
    minibatches = settings.get("train.minibatches")
    if isinstance(minibatches, int) and minibatches > 1:
        yield f"train.minibatches={max(minibatches // 2, 1)}: each is an update of its own"
    if not shares.engines_idle > MOST_COST:
        yield "engines and trainer are both busy: only more or faster processors make it faster"


def _update_faster(shares: TimeShares, settings: Settings) -> Iterator[str]:
    each = f"an update takes {_s(shares.update_s)} of a step's {_s(shares.step_s)}"
    if settings.get("weights.deltas") is False:
        yield f"weights.deltas=true sends only what changed: {each}"
    groups = settings.get("control.groups_per_step")
    if isinstance(groups, int):
        yield f"control.groups_per_step={2 * groups}: half as many updates for as much data ({each})"


def _save_less(shares: TimeShares, settings: Settings) -> Iterator[str]:
    every = settings.get("train.save_every")
    if every is None:
        yield "train.save_every=0 saves the last step alone"
    elif isinstance(every, int) and every:
        wanted = math.ceil(every * shares.waits(WaitCause.CHECKPOINT) / 0.05)
        yield f"train.save_every={wanted}: copies would then take 5% of the time"


def _more_sessions(shares: TimeShares, settings: Settings) -> Iterator[str]:
    sessions = settings.get("rollout.max_sessions")
    if shares.has_agents and isinstance(sessions, int):
        wanted = math.ceil(sessions * min(1 / max(1 - shares.engines_idle, 0.1), 8))
        yield f"rollout.max_sessions={wanted}: engines are idle for {share(shares.engines_idle)} while agents wait"
    bound = settings.get("control.max_staleness")
    if isinstance(bound, int):
        yield f"control.max_staleness={max(2 * bound, 2)}: more rollouts may go on at once"
    yield "make what the agents wait for faster: tools, other services"


def _look_at_logs(shares: TimeShares, settings: Settings) -> Iterator[str]:
    yield "see the notes and logs/ for why engines ended"


def _s(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else duration(seconds)


_GENERATION: tuple[str, Advise, bool] = ("generation", _generate_faster, False)
_BOUND: tuple[str, Advise, bool] = ("the staleness bound", _allow_older, True)
