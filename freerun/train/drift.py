"""Drift, the distance between what engines sampled by and what the trainer holds, taken apart by what it comes from.

With d = log π_before − log π_behavior of a sampled token, both among all tokens, and m the mass that top-k and top-p
left where it was sampled (`cutoffs.py`):

    drift = mean ½ d² + mean −log m

The first is to second order KL(π_behavior ‖ π_before), and squares of independent causes add; the second is exactly
KL(what was sampled from ‖ π_behavior). So the sum is about the KL divergence of the policy before the step from what
was really sampled from. Tokens tell the causes of d apart by what can have touched them:

    sampled by the weights of the step                   numerics
    the same, part of its cache by older weights         numerics + cache
    sampled by older weights                             numerics           + staleness
    the same, part of its cache older still              numerics + cache   + staleness

Numerics are measured on the first kind, in this step or the latest that had some (`Reference`), and taken off the
others. Where cache and staleness both have a part, it is shared out in proportion to what they have where they are alone.
What no drift of weights explains is found before all that (`mismatched.py`).

A part is never negative, and together they are the whole. What no other token has shown the cause of is `unexplained`,
and not given to any: such as old tokens, before there was ever a fresh one.

Knows nothing of batches, ranks or torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from freerun.train.mismatched import mismatched

NUMERICS, STALENESS, CACHE, CUTOFFS, TOKENS = "numerics", "staleness", "cache", "cutoffs", "tokens"
UNEXPLAINED = "unexplained"
PARTS = (NUMERICS, STALENESS, CACHE, CUTOFFS, TOKENS, UNEXPLAINED)

_OLDEST = 16
"""Tokens older than this are taken together with those of this age."""
_ENOUGH = 64
"""Tokens whose mean is relied on."""
_LATEST = 20_000
"""How many tokens of earlier steps are remembered."""
_GROWTH = 1.4
"""Staleness grows as its age to this power, as measured: 1 would be steps that have nothing to do with each other, 2
steps in one direction."""


@dataclass(slots=True, frozen=True)
class Compared:
    """Sampled and trained tokens whose log-probability by the weights before the step is known: answer after answer,
    and within one in order."""

    off: NDArray[np.float64]
    """log π_before − log π_behavior."""
    age: NDArray[np.int64]
    """How many versions ago it was sampled."""
    mixed: NDArray[np.bool_]
    """Part of the cache that it was sampled by may be of an older version than the weights."""
    answer: NDArray[np.int64]
    """Which answer it is of. Later tokens have no smaller number."""


class Seen(NamedTuple):
    """A mean over so many tokens."""

    mean: float = 0.0
    count: float = 0.0

    def joined(self, mean: float, count: float) -> "Seen":
        """With more tokens; of those from before, only the latest are remembered."""
        kept = min(self.count, max(0.0, _LATEST - count))
        total = kept + count
        return Seen((self.mean * kept + mean * count) / total, total) if total else self

    @property
    def known(self) -> float | None:
        return self.mean if self.count >= _ENOUGH else None


class Reference(NamedTuple):
    """What causes had where they were alone, in earlier steps. Plain numbers: it is part of a checkpoint."""

    numerics: Seen = Seen()
    staleness: Seen = Seen()
    """Of tokens one version old."""
    cache: Seen = Seen()

    @property
    def plain(self) -> tuple[tuple[float, float], ...]:
        return tuple(tuple(seen) for seen in self)

    @classmethod
    def of(cls, plain: tuple[tuple[float, float], ...]) -> "Reference":
        return cls(*(Seen(*seen) for seen in plain))


@dataclass(slots=True, frozen=True)
class _Kind:
    """The tokens of one age whose caches are mixed, or are not."""

    age: int
    mixed: bool
    count: int
    total: float
    """The sum of their ½ d², without what is by tokens that do not match."""

    def beyond(self, numerics: float) -> float:
        """Their mean, less numerics."""
        return max(self.total / self.count - numerics, 0.0)


@dataclass(slots=True, frozen=True)
class TakenApart:
    parts: Mapping[str, float]
    """Of mean ½ d², by name; together they are all of it."""
    mismatched: int
    """Tokens that do not match."""
    reference: Reference
    """For the next step."""


def take_apart(tokens: Compared, reference: Reference) -> TakenApart:
    """The parts of mean ½ d². Without tokens they are all nothing."""
    sums = dict.fromkeys(PARTS, 0.0)
    if not len(tokens.off):
        return TakenApart(sums, 0, reference)
    wrong = mismatched(tokens.off, (tokens.age == 0) & ~tokens.mixed, tokens.answer)
    kinds, sums[TOKENS] = _kinds(tokens, wrong.touched)
    reference = _with_alone(reference, kinds)
    for kind in kinds:
        for part, total in _causes(kind, kinds, reference).items():
            sums[part] += total
    parts = {part: total / len(tokens.off) for part, total in sums.items()}
    return TakenApart(parts, wrong.count, reference)


def _kinds(tokens: Compared, touched: NDArray[np.bool_]) -> tuple[list[_Kind], float]:
    """The kinds that there are, and the sum of ½ d² by tokens that do not match: what those and the tokens behind them
    have beyond the others of their kind."""
    code = 2 * np.clip(tokens.age, 0, _OLDEST) + tokens.mixed
    half = 0.5 * tokens.off**2
    counts, totals = np.bincount(code), np.bincount(code, half)
    fine = ~touched
    fine_counts, fine_totals = (np.bincount(code[fine], w, len(counts)) for w in (None, half[fine]))
    expected = np.divide(fine_totals, fine_counts, out=np.zeros_like(totals), where=fine_counts > 0) * counts
    usual = np.where(fine_counts == counts, totals, np.minimum(totals, expected))
    kinds = [_Kind(int(c) // 2, bool(c % 2), int(counts[c]), float(usual[c])) for c in np.flatnonzero(counts)]
    return kinds, float((totals - usual).sum())


def _with_alone(reference: Reference, kinds: list[_Kind]) -> Reference:
    """With what this step shows of each cause alone."""
    for kind in kinds:
        if not kind.age and not kind.mixed:
            reference = reference._replace(numerics=reference.numerics.joined(kind.total / kind.count, kind.count))
    numerics = reference.numerics.known
    if numerics is None:
        return reference
    for kind in kinds:
        if kind.age and not kind.mixed:
            by_one = kind.beyond(numerics) / kind.age**_GROWTH
            reference = reference._replace(staleness=reference.staleness.joined(by_one, kind.count))
        elif kind.mixed and not kind.age:
            reference = reference._replace(cache=reference.cache.joined(kind.beyond(numerics), kind.count))
    return reference


def _causes(kind: _Kind, kinds: list[_Kind], reference: Reference) -> dict[str, float]:
    """What this kind's sum comes from."""
    if not kind.age and not kind.mixed:
        return {NUMERICS: kind.total}
    numerics = reference.numerics.known
    if numerics is None:
        return {UNEXPLAINED: kind.total}
    beyond = kind.beyond(numerics) * kind.count
    known = {NUMERICS: kind.total - beyond}
    if not kind.mixed:
        return known | {STALENESS: beyond}
    if not kind.age:
        return known | {CACHE: beyond}
    alike = [k.beyond(numerics) for k in kinds if k.age == kind.age and not k.mixed and k.count >= _ENOUGH]
    by_one = reference.staleness.known
    stale = alike[0] if alike else None if by_one is None else by_one * kind.age**_GROWTH
    return known | _both(beyond, stale, reference.cache.known, kind.count)


def _both(beyond: float, stale: float | None, cache: float | None, count: int) -> dict[str, float]:
    """Staleness and cache together, by what a token has of either where it is alone."""
    if stale is not None and cache is not None and stale + cache > 0:
        by_cache = beyond * cache / (stale + cache)
    elif stale is not None:
        by_cache = beyond - min(beyond, stale * count)
    elif cache is not None:
        by_cache = min(beyond, cache * count)
    else:
        return {UNEXPLAINED: beyond}
    return {CACHE: by_cache, STALENESS: beyond - by_cache}
