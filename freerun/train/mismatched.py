"""Sampled tokens that are not the ones the trainer sees, or not after the tokens that it sees: encoded again, shifted,
another answer's.

A token that the very weights of the step sampled should agree to rounding, however low the precision: one that is some
nats off does not match. One that older weights sampled may have become less likely by learning, however much. But the
ratios π_before / π_behavior of tokens that were really sampled have a mean of 1: what some lose, others gain. So of
those, the worst do not match only as far as that mean falls short of 1, and by more than chance.

Tokens behind one that does not match have another context than they were sampled in. They are `touched`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_FRESH = (2.0, 4.0)
"""A fresh token that is this many nats off does not match: ten times what most are off, but not less or more than
this. In bf16 the worst of many thousand tokens are off by 0.1 to 0.5."""
_ODD = (0.25, 2.0)
"""Where there are such tokens, there are more that do not match, and happen to be not as unlikely: those so far off."""
_OLD = 5.0
"""The same of others, with no upper limit: weights may have moved far."""
_TIMES_MOST = 10.0
_CHANCE = 4.0
"""Standard deviations that the mean ratio must be below 1."""


@dataclass(slots=True, frozen=True)
class Mismatched:
    count: int
    touched: NDArray[np.bool_]
    """They, and those behind them in their answers."""


def mismatched(off: NDArray[np.float64], fresh: NDArray[np.bool_], answer: NDArray[np.int64]) -> Mismatched:
    """`off` is log π_before − log π_behavior of tokens in order, answer by answer; `fresh` says which were sampled by
    the weights before the step, and no others had a part in them."""
    found, odd = (np.zeros(len(off), np.bool_) for _ in range(2))
    found[fresh], odd[fresh] = _far_off(off[fresh])
    found[~fresh] = _fallen(off[~fresh])
    if found[fresh].any():
        found |= odd
    return Mismatched(int(found.sum()), _with_those_behind(found, answer))


def _with_those_behind(found: NDArray[np.bool_], answer: NDArray[np.int64]) -> NDArray[np.bool_]:
    places = np.flatnonzero(found)
    if not len(places):
        return found
    answers, first = np.unique(answer[places], return_index=True)
    begins = np.full(int(answer.max()) + 1, len(found))
    begins[answers] = places[first]
    behind: NDArray[np.bool_] = np.arange(len(found)) >= begins[answer]
    return behind


def _far_off(off: NDArray[np.float64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which do not match, and which are odd, whichever way they are off."""
    distance = np.abs(off)
    most = _TIMES_MOST * float(np.quantile(distance, 0.75)) if len(off) else 0.0
    return distance > np.clip(most, *_FRESH), distance > np.clip(most, *_ODD)


def _fallen(off: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which have become so unlikely that they do not match."""
    found = np.zeros(len(off), np.bool_)
    if len(off) < 2:
        return found
    ratio = np.exp(np.minimum(off, _OLD))
    short = 1 - ratio.mean()
    if short <= _CHANCE * ratio.std() / np.sqrt(len(off)):
        return found
    limit = max(_OLD, _TIMES_MOST * float(np.quantile(np.abs(off), 0.75)))
    far = np.flatnonzero(off < -limit)
    found[far[np.argsort(off[far])][: int(np.ceil(short * len(off)))]] = True
    return found
