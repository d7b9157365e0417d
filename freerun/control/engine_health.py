"""Which engines hang, are slow, or do not compute what the trainer does.

An engine hangs when it has left looks in a row without an answer, or got no further for long, in one step or with
answers running. It is slow when it sampled fewer than a quarter of its peers' tokens a second while busy, in all and
for each answer: one that has few answers left samples less in all, and one that has many samples less for each. It is
off when its log-probabilities are much further from the trainer's than its peers', at equal weights, where there should
be rounding alone. Both need peers: where all engines are off alike, or there is only one, the trainer's own notes say
so (`train/health.py`).

Pure: it knows names, figures and the time that it is told, and decides nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import ClassVar

import numpy as np

from freerun.core import Batch, Group, Version
from freerun.core.nouns import NOT_SAMPLED, Logprobs
from freerun.core.reports import EngineStats, StepResult
from freerun.train.drift import Seen


@dataclass(slots=True)
class _Pace:
    """What an engine did while it was busy, in the window."""

    busy_s: float = 0.0
    answer_s: float = 0.0
    """The same for each running answer."""
    tokens: int = 0

    @property
    def rates(self) -> tuple[float, float]:
        """Tokens a second, in all and for each answer."""
        return self.tokens / self.busy_s, self.tokens / max(self.answer_s, 1e-9)


@dataclass(slots=True)
class _Known:
    """One engine, since it began or came back."""

    since: Version = 0
    """Its version then. An earlier process of the same name may have had that, too."""
    latest: EngineStats | None = None
    latest_s: float = 0.0
    moved_s: float = 0.0
    """When it was last seen to have got on, or to have nothing to do."""
    unheard: int = 0
    """Looks in a row without an answer."""
    evades_s: float | None = None
    """Since when it answers without saying how it is doing."""
    pace: _Pace = field(default_factory=_Pace)
    off: Seen = field(default_factory=Seen)
    """How far its log-probabilities are from the trainer's, in nats, mean over its latest fresh tokens."""


class EngineHealth:
    UNHEARD: ClassVar[int] = 2
    """Looks in a row that an engine may leave without an answer."""
    STUCK_S: ClassVar[float] = 300.0
    """How long an engine may get nowhere: kernels compile, prompts are long."""
    WINDOW_S: ClassVar[float] = 180.0
    """How long engines' speeds are compared for; each must have been busy for half of it."""
    SLOW: ClassVar[float] = 0.25
    """Share of its peers' median."""
    OFF: ClassVar[float] = 4.0
    """Multiple of its peers' median."""
    OFF_NATS: ClassVar[float] = 0.05
    """No engine is off by less: bfloat16 takes others 0.01 to 0.02 apart."""
    OFF_TOKENS: ClassVar[int] = 2_000
    """Tokens that an engine is judged by, at least."""
    AGAIN_S: ClassVar[float] = 3600.0
    """An engine that is found sick twice within this time does not get well by another start."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._window_s: float | None = None
        self._sick_s: dict[str, float] = {}
        """When each was last found slow or off."""

    def began(self, name: str, version: Version) -> None:
        """It is asked from now on, with that version: it may be another process than before."""
        self._known[name] = _Known(since=version)

    def forget(self, name: str) -> None:
        """It is asked nothing more."""
        self._known.pop(name, None)

    def unheard(self, name: str) -> str | None:
        """It has not answered a look; what is wrong with it, if it did so too often."""
        known = self._known.setdefault(name, _Known())
        known.unheard += 1
        return f"it has not answered {known.unheard} looks in a row" if known.unheard >= self.UNHEARD else None

    def heard(self, name: str, stats: EngineStats, now_s: float, updating: bool = False) -> str | None:
        """It has said how it is doing; what is wrong with it, if it hangs. While new weights come, nobody need get on
        with anything."""
        known = self._known.setdefault(name, _Known())
        before, known.latest = known.latest, stats
        elapsed_s, known.latest_s, known.unheard, known.evades_s = now_s - known.latest_s, now_s, 0, None
        if before is None or stats.tokens < before.tokens:  # it is another process
            known.moved_s, known.pace = now_s, _Pace()
            return None
        if updating or not stats.running or _work(stats) != _work(before):
            known.moved_s = now_s
        if before.running:
            busy_s = max(elapsed_s - (stats.idle_s - before.idle_s), 0.0)
            known.pace.busy_s += busy_s
            known.pace.answer_s += busy_s * before.running
            known.pace.tokens += stats.tokens - before.tokens
        stuck_s = now_s - known.moved_s
        if stuck_s < self.STUCK_S:
            return None
        return f"it has had {stats.running} answers running for {stuck_s:.0f} s, and sampled nothing"

    def evades(self, name: str, now_s: float, updating: bool = False) -> str | None:
        """It answers, and does not say how it is doing, which it does between two of its steps; what is wrong with it,
        if it hangs in one."""
        known = self._known.setdefault(name, _Known())
        known.unheard = 0
        if updating or known.evades_s is None:
            known.evades_s = now_s
        silent_s = now_s - known.evades_s
        return (
            f"it answers, and has come to no end of a step for {silent_s:.0f} s" if silent_s >= self.STUCK_S else None
        )

    def slow(self, now_s: float) -> dict[str, str]:
        """Those that were slow in the window, when one has passed, and what to say of each."""
        if self._window_s is None or now_s - self._window_s < self.WINDOW_S:
            self._window_s = self._window_s if self._window_s is not None else now_s
            return {}
        busy = {name: one.pace for name, one in self._known.items() if one.pace.busy_s >= self.WINDOW_S / 2}
        self._window_s = now_s
        for one in self._known.values():
            one.pace = _Pace()
        return {name: said for name in busy if (said := self._slowness(name, busy))}

    def _slowness(self, name: str, busy: dict[str, _Pace]) -> str | None:
        peers = [pace.rates for other, pace in busy.items() if other != name]
        if not peers:
            return None
        in_all, each = busy[name].rates
        usual, usual_each = (median(rates) for rates in zip(*peers, strict=True))
        if in_all >= self.SLOW * usual or each >= self.SLOW * usual_each:
            return None
        return (
            f"it is slow: {in_all:.3g} tokens/s while busy, {each:.2g} for each answer; its peers' medians are "
            f"{usual:.3g} and {usual_each:.2g}"
        )

    def compared(self, batch: Batch, result: StepResult) -> dict[str, str]:
        """Those whose log-probabilities are off, by what is known after that step, and what to say of each."""
        if result.before_logprobs is not None:
            for name, (total, count) in self._off_by(batch, result.before_logprobs).items():
                if count:
                    self._known[name].off = self._known[name].off.joined(total / count, count)
        means = {name: one.off.mean for name, one in self._known.items() if one.off.count >= self.OFF_TOKENS}
        return {name: said for name in means if (said := self._offness(name, means))}

    def _offness(self, name: str, means: dict[str, float]) -> str | None:
        peers = [mean for other, mean in means.items() if other != name]
        if not peers or means[name] < max(self.OFF_NATS, self.OFF * median(peers)):
            return None
        return (
            f"its log-probabilities are off: {means[name]:.2g} nats from the trainer's at equal weights, mean over its "
            f"tokens; its peers' median is {median(peers):.2g}"
        )

    def _off_by(self, batch: Batch, before: list[Logprobs]) -> dict[str, tuple[float, int]]:
        """By engine: the sum over its fresh tokens, and how many they are. Some are enough: a batch may have millions,
        and the loop waits."""
        found: dict[str, tuple[float, int]] = {}
        befores = iter(before)
        for group in batch.groups:
            mine = [next(befores) for _ in group.samples]
            known = self._known.get(group.engine)
            total, count = found.get(group.engine, (0.0, 0))
            if known and batch.version > known.since and count < self.OFF_TOKENS:
                for off in _fresh(group, mine, batch.version):
                    total, count = total + float(off.sum()), count + len(off)
                found[group.engine] = total, count
        return found

    def may_go_on(self, name: str, now_s: float) -> bool:
        """Note that it was found sick; whether another start may help: it was not found so shortly before."""
        before_s, self._sick_s[name] = self._sick_s.get(name), now_s
        return before_s is None or now_s - before_s > self.AGAIN_S


def _work(stats: EngineStats) -> tuple[int, int, Version]:
    return stats.tokens, stats.prompt_tokens, stats.version


def _fresh(group: Group, before: list[Logprobs], version: Version) -> Iterator[Logprobs]:
    """How far sampled tokens of that version are from the trainer's, by stretch; only what is known."""
    for sample, logprobs in zip(group.samples, before, strict=True):
        sampled = 0
        for of, start, end in sample.versions.stretches():
            if of == version:
                off = np.abs(logprobs[sampled : sampled + end - start] - sample.behavior_logprobs[start:end])
                yield off[np.isfinite(off)]
            sampled += (end - start) * (of != NOT_SAMPLED)
