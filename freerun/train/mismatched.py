"""Sampled tokens that are not the ones the trainer sees, or not after the tokens that it sees: encoded again, shifted,
another answer's.

A token that the very weights of the step sampled should agree to rounding, however low the precision: one that is some
nats off does not match. One that older weights sampled may have become as unlikely by learning, so nothing is said of
those. Tokens behind one that does not match have another context than they were sampled in: they are `touched`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_FAR = (2.0, 4.0)
"""A fresh token that is this many nats off does not match: ten times what most are off, but not less or more than
this. In bf16 the worst of many thousand tokens are off by 0.1 to 0.5."""
_ODD = (0.25, 2.0)
"""Where there are such tokens, there are more that do not match, and happen to be not as unlikely: those so far off."""
_TIMES_MOST = 10.0


@dataclass(slots=True, frozen=True)
class Mismatched:
    count: int
    touched: NDArray[np.bool_]
    """They, and those behind them in their answers."""


def mismatched(off: NDArray[np.float64], fresh: NDArray[np.bool_], answer: NDArray[np.int64]) -> Mismatched:
    """`off` is log π_before − log π_behavior of tokens in order, answer by answer; `fresh` says which were sampled by
    the weights before the step, and no others had a part in them. Whichever way they are off."""
    distance = np.where(fresh, np.abs(off), 0.0)
    most = _TIMES_MOST * float(np.quantile(distance[fresh], 0.75)) if fresh.any() else 0.0
    found = np.zeros(len(off), np.bool_)
    if (distance > np.clip(most, *_FAR)).any():
        found = distance > np.clip(most, *_ODD)
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
