"""What samples have in common: which tokens of a micro-batch need not be computed again, and who should go together.

Tokens after the same tokens are the same, in one sample or in another: a prompt, the turns before a conversation
forked, a system prompt of all tasks. A sample takes over what earlier samples of its micro-batch begin with, up to its
own first trained token. From there on it is computed anew, even where another sampled the same.

Sorted by their tokens, samples that share most are neighbors, and what any two have in common is the least that any
two neighbors between them have. So nothing here compares all with all, and tokens are compared by numpy only.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter

from freerun.core import Sample
from freerun.core.nouns import Tokens

WORTH = 16
"""Bundles are kept together beyond the size that fills micro-batches evenly where cutting them would compute more than
this part of the smaller one again."""


def first_trained(sample: Sample) -> int:
    """Where its first token with a loss is, up to which it may share; 0 where there is none."""
    return int(sample.loss_mask.argmax()) if len(sample.tokens) else 0


def common(one: Tokens, other: Tokens) -> int:
    """How many tokens both begin with."""
    length = min(len(one), len(other))
    if not length:
        return 0
    differ = one[:length] != other[:length]
    place = int(differ.argmax())
    return place if differ[place] else length


def by_tokens(samples: Sequence[Sample]) -> list[int]:
    """Their places in the order of their tokens, the beginning of a sample before the sample."""
    keys = [sample.tokens.astype(">u4").tobytes() for sample in samples]
    return sorted(range(len(samples)), key=keys.__getitem__)


def distinct_tokens(samples: Sequence[Sample]) -> int:
    """How many tokens there are when a token after the same tokens counts once."""
    order = by_tokens(samples)
    shared = sum(common(samples[i].tokens, samples[j].tokens) for i, j in pairwise(order))
    return sum(len(sample.tokens) for sample in samples) - shared


def shared_ranges(samples: Sequence[Sample]) -> list[list[range]]:
    """For each sample, in which rows its first tokens are already when the samples before it have theirs, one after
    another; the rows of its other tokens follow. Several ranges, where those samples share, too."""
    ranks = {place: rank for rank, place in enumerate(by_tokens(samples))}
    present: list[tuple[int, int]] = []
    prefixes: list[list[range]] = []
    paths: list[list[range]] = []
    start = 0
    for place, sample in enumerate(samples):
        at = bisect_left(present, (ranks[place], place))
        present.insert(at, (ranks[place], place))
        beginning = sample.tokens[: first_trained(sample)]
        near = [other for _, other in (*present[max(at - 1, 0) : at], *present[at + 1 : at + 2])]
        found = [(common(beginning, samples[other].tokens), other) for other in near]
        length, other = max(found, default=(0, 0), key=itemgetter(0))
        prefixes.append(_beginning(paths[other], length) if length else [])
        own = range(start, start + len(sample.tokens) - length)
        paths.append([*prefixes[-1], own])
        start = own.stop
    return prefixes


def _beginning(path: list[range], length: int) -> list[range]:
    """The first rows of these."""
    result: list[range] = []
    for rows in path:
        if length <= 0:
            break
        result.append(rows[:length])
        length -= len(rows)
    return result


@dataclass(slots=True)
class Bundle:
    """Samples that should stay together: what they have in common is computed once for all of them."""

    samples: list[int]
    load: int
    """What it takes of a micro-batch's capacity, in tokens. Who shares a prefix still has its keys and values to
    himself while he looks at them: each of its tokens counts a quarter."""


@dataclass(slots=True)
class _Run:
    """Neighbors in the order of tokens that go together. Computed in the order of their first trained tokens."""

    first: int
    last: int
    load: int
    free: int
    """How many tokens the one that is computed first may take over from another run: those before its first trained
    one."""


def bundles(samples: Sequence[Sample], capacity: int) -> list[Bundle]:
    """Those that have most in common are joined first: up to an eighth of a micro-batch, so that bundles still fill
    micro-batches evenly, and up to all of it where that saves much.

    When two runs of neighbors are joined that have c tokens in common, all within either have as many in common, so
    that only the first computed of a run computes them. Of the two runs' first ones, that with the later first trained
    token now takes c tokens over from the other, or as many as come before it; nothing else changes.
    """
    order = by_tokens(samples)
    limits = [first_trained(sample) for sample in samples]
    runs = [_Run(rank, rank, len(samples[i].tokens), limits[i]) for rank, i in enumerate(order)]
    links = [common(samples[i].tokens, samples[j].tokens) for i, j in pairwise(order)]
    at = list(range(len(order)))  # for the first and the last of a run: which run
    for link in sorted(range(len(links)), key=lambda link: -links[link]):
        left, right = runs[at[link]], runs[at[link + 1]]
        shared = min(links[link], max(left.free, right.free))
        joined = left.load + right.load - shared * 3 // 4
        much = shared * WORTH >= min(left.load, right.load) and joined <= capacity
        if shared and (much or 8 * joined <= capacity):
            runs[at[left.first]] = _Run(left.first, right.last, joined, min(left.free, right.free))
            at[right.last] = at[left.first]
    found = [runs[at[rank]] for rank in range(len(order)) if runs[at[rank]].last == rank]
    together = [Bundle(sorted(order[run.first : run.last + 1]), run.load) for run in found]
    return sorted(together, key=lambda bundle: bundle.samples[0])
