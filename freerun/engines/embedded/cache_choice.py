"""Whether an answer keeps its cache when new weights come, or has it rebuilt: answer by answer (`on_update: auto`).

An answer that goes on with what older weights left in its cache samples from a policy that is no version's. Its
log-probabilities are what it sampled by, but they part from the trainer's, so that the ratios of the two vary more.
With d = the log-probability of a sampled token, less that of a recompute with the same weights, and ρ = exp(−d) spread
like a log-normal around a mean of 1, a token adds exp(E[d²]) to Σρ² instead of 1. The trainer's figure, effective
samples, (Σρ)² / Σρ², falls by exp(E[d²]) − 1 for it, where all else is well: a few tokens that are far astray take the
worth of many others. Rebuilding takes time in which others would sample. So a cache is rebuilt where

    left · (exp(error · age) − 1)  >  to_read · read_s · rate

    left      tokens that the answer has yet to sample, by how long this run's answers became
    age       of its cache, were it kept: versions that came since a cached token was computed, mean over its tokens
    error     E[d²] for each version of age, measured: see `Error`
    to_read   tokens to compute again: its own, and its share of a prompt's that it has in common with others
    read_s    seconds for each token that is read, rate: tokens sampled a second while nothing is read; see `Pace`

Both sides are effective tokens, won and lost. Until something is measured, all caches are rebuilt, but for a few
answers which are kept to be measured. So is one later, where all would be rebuilt, if that costs next to nothing by the
error that is known, which is believed less and less while nothing is measured.

Knows requests and sequences; knows neither tensors nor blocks.
"""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from freerun.core import Version
from freerun.engines.embedded.sequence import Sequence

PROBES = 2
"""Answers that are kept though nothing is known yet, of more than so many."""
PROBE_COST = 0.005
"""What share of all tokens to come may be lost by keeping one answer later, so as to learn whether caches could be kept
again."""
ENOUGH = 8
"""Tokens that a kept answer must have sampled since the update to be measured, and by which it is."""
CANDIDATES = 16
"""Answers that may be measured after an update: those with the oldest caches."""
MEASURE_SHARE = 0.01
"""The share of the engine's time that may go into measuring."""
MOST_SQUARE = math.log(5.0) ** 2
"""A token's d² counts no more than this: where the trainer caps ratios, one token more or less astray is the same."""
_FORGETS = 0.9
"""What a measurement counts for when the next is made; what a second of the pace counts for a second later."""
_FEW = 4
"""Answers that became longer than one: with fewer, nobody knows how long it will be."""
_ENDED = 512


@dataclass(slots=True)
class Error:
    """What old caches do to log-probabilities: d² against a recompute grows with the age of the cache, by about as much
    for each version. Measured on a sample of kept answers, forgetting as learning slows down."""

    squares: float = 0.0
    ages: float = 0.0
    distances: float = 0.0
    """Sums over tokens: of d², of the age of the cache they were sampled by, of |d|."""
    weight: float = 0.0
    tokens: int = 0
    """Measured since the start."""

    def add(self, apart: list[float], age: float) -> None:
        """One answer's d, by a cache of that age."""
        squares = sum(min(one * one, MOST_SQUARE) for one in apart)
        for name, new in (
            ("squares", squares),
            ("ages", age * len(apart)),
            ("distances", sum(map(abs, apart))),
            ("weight", len(apart)),
        ):
            setattr(self, name, _FORGETS * getattr(self, name) + new)
        self.tokens += len(apart)

    @property
    def known(self) -> bool:
        return self.ages > 0

    @property
    def mean(self) -> float:
        """Mean |d|, in nats; 0 before anything was measured."""
        return self.distances / self.weight if self.weight else 0.0

    def lost(self, age: float) -> float:
        """How many effective samples a token costs that a cache of that age samples."""
        return math.expm1(min(self.squares / self.ages * age, MOST_SQUARE))

    def fade(self) -> None:
        """Nothing was measured."""
        self.squares *= _FORGETS


class Pace:
    """How long reading and sampling take, told apart by how much of either there was: seconds ≈ read_s · tokens read +
    step_s · steps that sample, fitted with what was long ago forgotten."""

    def __init__(self) -> None:
        self._last: tuple[float, int, int, int] | None = None
        self._rr = self._rs = self._ss = self._rt = self._st = 0.0
        self._sampled = self._steps = 0.0

    def tick(self, now_s: float, read: int, steps: int, sampled: int) -> None:
        """The totals so far. The time since the last tick counts, unless `rest` came in between."""
        last, self._last = self._last, (now_s, read, steps, sampled)
        if last is None:
            return
        took_s, r, s = now_s - last[0], read - last[1], steps - last[2]
        keep = _FORGETS**took_s
        self._rr, self._rs, self._ss = keep * self._rr + r * r, keep * self._rs + r * s, keep * self._ss + s * s
        self._rt, self._st = keep * self._rt + r * took_s, keep * self._st + s * took_s
        self._steps, self._sampled = keep * self._steps + s, keep * self._sampled + sampled - last[3]

    def rest(self) -> None:
        """What comes now is neither reading nor sampling."""
        self._last = None

    @property
    def read_cost(self) -> float | None:
        """Tokens that the others would sample in the time it takes to read one; None: not known yet."""
        determinant = self._rr * self._ss - self._rs**2
        if determinant <= 1e-9 * self._rr * self._ss or not self._steps:
            return None
        read_s = (self._rt * self._ss - self._st * self._rs) / determinant
        step_s = (self._st * self._rr - self._rt * self._rs) / determinant
        if step_s <= 0:
            return None
        return max(read_s, 0.0) / step_s * (self._sampled / self._steps)


class Lengths:
    """How long the run's answers became, the latest of them."""

    def __init__(self) -> None:
        self._ended = deque[int](maxlen=_ENDED)
        self._sorted, self._sums = list[int](), [0]
        """In ascending order, and the sums of the first so many."""
        self._changed = False

    def add(self, tokens: int) -> None:
        self._ended.append(tokens)
        self._changed = True

    def left(self, sampled: int, most: int) -> float:
        """Tokens that an answer of so many is expected to sample yet. One that is longer than nearly all others goes on
        for as long again as it has: as long-tailed lengths do."""
        if self._changed:
            self._sorted, self._changed = sorted(self._ended), False
            self._sums = [0, *accumulate(self._sorted)]
        first = bisect_right(self._sorted, sampled)
        longer = len(self._sorted) - first
        if longer < _FEW:
            return float(min(max(sampled, ENOUGH), most - sampled))
        return min((self._sums[-1] - self._sums[first]) / longer - sampled, float(most - sampled))


@dataclass(slots=True)
class CacheChoice:
    """Consumes the totals of the engine's work and the lengths of its answers; produces which caches to rebuild."""

    error: Error = field(default_factory=Error)
    pace: Pace = field(default_factory=Pace)
    lengths: Lengths = field(default_factory=Lengths)
    kept: int = 0
    rebuilt: int = 0
    """Answers, counted again at every update."""
    last_kept: int = 0
    last_rebuilt: int = 0
    """At the last update."""
    measuring_s: float = 0.0
    began_s: float | None = None
    _candidates: list[Sequence] = field(default_factory=list)
    """Answers kept at the last update, of which one is to be measured."""

    def rebuild(self, running: Iterable[Sequence], versions: int) -> set[Sequence]:
        """Whose caches to rebuild, the new weights being so many versions on. Those without a cache have no choice."""
        sequences = [one for one in running if one.computed]
        gains = {one: self.gain(one, versions, sharing) for one, sharing in _with_sharers(sequences)}
        chosen = {one for one, gain in gains.items() if gain > 0}
        if chosen and len(chosen) == len(sequences):
            chosen -= self._probes(sequences, gains)
        self.last_rebuilt, self.last_kept = len(chosen), len(sequences) - len(chosen)
        self.rebuilt += self.last_rebuilt
        self.kept += self.last_kept
        kept = [one for one in sequences if one not in chosen]
        self._candidates = sorted(kept, key=lambda one: one.age, reverse=True)[:CANDIDATES]
        return chosen

    def _probes(self, sequences: list[Sequence], gains: Mapping[Sequence, float]) -> set[Sequence]:
        """Whom to keep against the formula."""
        long_enough = [one for one in sequences if self._left(one) > ENOUGH] or sequences
        if not self.error.known:
            return set(long_enough[:PROBES]) if len(sequences) > PROBES else set()
        cheapest = min(long_enough, key=gains.__getitem__)
        if gains[cheapest] < PROBE_COST * sum(map(self._left, sequences)):
            return {cheapest}
        self.error.fade()
        return set()

    def gain(self, one: Sequence, versions: int, sharers: int = 1) -> float:
        """Effective tokens won by rebuilding, less those lost; `sharers` of its prompt's cache share that cost."""
        cost = self.pace.read_cost
        if not self.error.known or cost is None:
            return math.inf
        prefix = one.request.prefix
        to_read = max(one.computed - prefix, 0) + min(one.computed, prefix) / sharers
        won = self._left(one) * self.error.lost(one.age + versions * one.computed / max(one.length - 1, 1))
        return won - to_read * cost

    def _left(self, one: Sequence) -> float:
        return self.lengths.left(len(one.tokens), one.request.sampling.max_new_tokens)

    def to_measure(self, version: Version, most_tokens: int, now_s: float) -> Sequence | None:
        """A kept answer that has sampled enough by the present version, if it is time to measure one: the one whose
        cache is oldest, of those that a step could read in one go."""
        self.began_s = self.began_s or now_s
        if not self._candidates or (self.error.known and self.measuring_s > MEASURE_SHARE * (now_s - self.began_s)):
            return None
        ready = [
            one
            for one in self._candidates
            if one.finish is None
            and one.age > 0
            and one.length <= most_tokens
            and not one.request.sampling.extras
            and one.versions[-ENOUGH:].count(version) >= ENOUGH
        ]
        if not ready:
            return None
        self._candidates = []
        return max(ready, key=lambda one: one.age)

    def measured(self, one: Sequence, recomputed: list[float], took_s: float) -> None:
        """The recomputed log-probabilities of its last tokens."""
        sampled = one.logprobs[len(one.logprobs) - len(recomputed) :]
        self.error.add([theirs - ours for theirs, ours in zip(sampled, recomputed, strict=True)], one.age)
        self.measuring_s += took_s


def _with_sharers(sequences: list[Sequence]) -> Iterable[tuple[Sequence, int]]:
    """With each, how many have its prompt's cache in common; one that went apart has its own."""
    sharers: dict[str, int] = {}
    for one in sequences:
        sharers[one.request.id] = sharers.get(one.request.id, 0) + 1
    return [(one, sharers[one.request.id]) for one in sequences]
