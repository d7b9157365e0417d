"""Drift, the distance between what engines sampled by and what the trainer holds, taken apart by what it comes from.

With d = log π_before − log π_behavior of a sampled token, both among all tokens, and m the mass that top-k and top-p
left where it was sampled (`cutoffs.py`):

    drift = mean ½ d² + mean −log m

The first is to second order KL(π_behavior ‖ π_before), and squares of independent causes add; the second is exactly the
KL divergence of a policy from itself cut off. So the sum is about the KL divergence of the policy before the step from
what was really sampled from. Tokens tell the causes of d apart by what can have touched them:

    sampled by the weights of the step                   numerics
    the same, part of its cache by older weights         numerics + cache
    sampled by older weights                             numerics           + staleness
    the same, part of its cache older still              numerics + cache   + staleness

Numerics are measured on the first kind, in this step and the latest that had some (`Reference`), and taken off the
others. Where cache and staleness both have a part, it is shared out in proportion to what either has alone. What no
drift of weights explains is found before all that, among fresh tokens (`mismatched.py`), and what it adds to their mean
is taken off the others, too.

A part is never negative, and together they are the whole. What no other token has shown the cause of is `unexplained`,
and not given to any: such as old tokens before there was ever a fresh one.

Knows nothing of batches, ranks or torch.
"""

from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from freerun.train.mismatched import mismatched

NUMERICS, STALENESS, CACHE, CUTOFFS, TOKENS = "numerics", "staleness", "cache", "cutoffs", "tokens"
UNEXPLAINED = "unexplained"
PARTS = (NUMERICS, STALENESS, CACHE, CUTOFFS, TOKENS, UNEXPLAINED)

_OLDEST = 16
"""Tokens older than this are taken together with those of this age."""
_ENOUGH = 16
"""Tokens whose mean is relied on."""
_LATEST = 20_000
"""How many tokens of earlier steps are remembered."""
_GROWTH = 1.4
"""Staleness grows as its age to this power, as measured: 1 would be steps that have nothing to do with each other, 2
steps in one direction."""
_ROUNDING = 0.03
"""Fresh tokens beside ones that do not match have no more than this by rounding: a quarter of a nat."""


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


@dataclass(slots=True, frozen=True)
class Seen:
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


@dataclass(slots=True, frozen=True)
class Reference:
    """What causes had where they were alone, in earlier steps. Plain numbers: it is part of a checkpoint."""

    numerics: Seen = Seen()
    staleness: Seen = Seen()
    """What tokens one version old have."""
    cache: Seen = Seen()
    tokens: Seen = Seen()
    """What tokens that do not match add to the mean of fresh ones. Nobody changes tokens by their age."""

    @property
    def plain(self) -> tuple[tuple[float, float], ...]:
        return astuple(self)

    @classmethod
    def of(cls, plain: tuple[tuple[float, float], ...]) -> "Reference":
        return cls(*(Seen(mean, count) for mean, count in plain))


@dataclass(slots=True, frozen=True)
class _Kind:
    """The tokens of one age whose caches are mixed, or are not."""

    age: int
    mixed: bool
    count: int
    total: float
    """The sum of their ½ d², without what is by tokens that were found not to match."""
    wrong: float
    """That."""

    @property
    def is_fresh(self) -> bool:
        """Nothing but the weights of the step had a part in them."""
        return not self.age and not self.mixed

    def beyond(self, reference: Reference) -> float:
        """The sum, less numerics and what tokens that do not match have among fresh ones, found here or not."""
        numerics, wrong = self.count * reference.numerics.mean, self.count * reference.tokens.mean
        return max(self.total - numerics - max(wrong - self.wrong, 0.0), 0.0)


@dataclass(slots=True, frozen=True)
class TakenApart:
    parts: Mapping[str, float]
    """Parts of mean ½ d², by name; together they are all of it."""
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
    kinds = _kinds(tokens, wrong.touched)
    reference = _with_alone(reference, kinds)
    for kind in kinds:
        for part, total in _causes(kind, kinds, reference).items():
            sums[part] += total
    parts = {part: total / len(tokens.off) for part, total in sums.items()}
    return TakenApart(parts, wrong.count, reference)


def _kinds(tokens: Compared, touched: NDArray[np.bool_]) -> list[_Kind]:
    """The kinds that there are. What tokens that do not match and those behind them have beyond the others of their
    kind is by them."""
    code = 2 * np.clip(tokens.age, 0, _OLDEST) + tokens.mixed
    half = 0.5 * tokens.off**2
    counts, totals = np.bincount(code), np.bincount(code, half)
    fine = ~touched
    fine_counts, fine_totals = (np.bincount(code[fine], w, len(counts)) for w in (None, half[fine]))
    expected = np.divide(fine_totals, fine_counts, out=np.zeros_like(totals), where=fine_counts > 0)
    expected[:1] = np.minimum(expected[:1], _ROUNDING)
    usual = np.where(fine_counts == counts, totals, np.minimum(totals, expected * counts))
    return [
        _Kind(int(c) // 2, bool(c % 2), int(counts[c]), float(usual[c]), float(totals[c] - usual[c]))
        for c in np.flatnonzero(counts)
    ]


def _with_alone(reference: Reference, kinds: list[_Kind]) -> Reference:
    """With what this step shows of each cause alone."""
    for kind in kinds:
        if kind.is_fresh:
            numerics = reference.numerics.joined(kind.total / kind.count, kind.count)
            wrong = reference.tokens.joined(kind.wrong / kind.count, kind.count)
            reference = replace(reference, numerics=numerics, tokens=wrong)
    if reference.numerics.known is None:
        return reference
    for kind in kinds:
        mean = kind.beyond(reference) / kind.count
        if kind.age and not kind.mixed:
            by_one = mean / kind.age**_GROWTH
            reference = replace(reference, staleness=reference.staleness.joined(by_one, kind.count))
        elif kind.mixed and not kind.age:
            reference = replace(reference, cache=reference.cache.joined(mean, kind.count))
    return reference


def _causes(kind: _Kind, kinds: list[_Kind], reference: Reference) -> dict[str, float]:
    """What this kind's sum comes from."""
    if kind.is_fresh:
        return {NUMERICS: kind.total, TOKENS: kind.wrong}
    if reference.numerics.known is None:
        return {UNEXPLAINED: kind.total, TOKENS: kind.wrong}
    beyond = kind.beyond(reference)
    by_numerics = min(kind.total - beyond, kind.count * reference.numerics.mean)
    known = {NUMERICS: by_numerics, TOKENS: kind.wrong + max(kind.total - beyond - by_numerics, 0.0)}
    if not kind.mixed:
        return known | {STALENESS: beyond}
    if not kind.age:
        return known | {CACHE: beyond}
    return known | _both(beyond, _stale(kind, kinds, reference), reference.cache.known, kind.count)


def _stale(kind: _Kind, kinds: list[_Kind], reference: Reference) -> float | None:
    """What a token of this age has by staleness alone: now, or by what earlier steps had."""
    for other in kinds:
        if other.age == kind.age and not other.mixed and other.count >= _ENOUGH:
            return other.beyond(reference) / other.count
    by_one = reference.staleness.known
    return None if by_one is None else by_one * kind.age**_GROWTH


def _both(beyond: float, stale: float | None, cache: float | None, count: int) -> dict[str, float]:
    """Staleness and cache together, by what a token has of either where it is alone."""
    if stale is not None and cache is not None and stale + cache > 0:
        by_cache = min(beyond, beyond * (cache / (stale + cache)))
    elif stale is not None:
        by_cache = beyond - min(beyond, stale * count)
    elif cache is not None:
        by_cache = min(beyond, cache * count)
    else:
        return {UNEXPLAINED: beyond}
    return {CACHE: by_cache, STALENESS: beyond - by_cache}
