"""Which version of the policy sampled each token of an answer.

An answer of thousands of tokens spans few versions, and the tokens of one version follow each other. So versions are
held, sent and counted as runs of equal ones; only who computes by token (the trainer, a report) has them one by one.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

from freerun.core.task import Version

NOT_SAMPLED: Version = -1
"""The version of a token that no policy sampled: a prompt's, or a tool's answer."""


@dataclass(slots=True, frozen=True)
class VersionRuns:
    """A version for each token. Iterating gives them one by one; `len` is the number of tokens."""

    runs: tuple[tuple[Version, int], ...] = ()
    """Each a version and how many tokens in a row have it. No count is 0, and neighbors differ."""

    @classmethod
    def of(cls, versions: "Sequence[Version] | NDArray[np.integer] | VersionRuns") -> "VersionRuns":
        """The runs of a list that has one version for each token."""
        if isinstance(versions, VersionRuns):
            return versions
        values = np.asarray(versions, np.int64)
        ends = [*(np.flatnonzero(values[1:] != values[:-1]) + 1).tolist(), len(values)] if len(values) else []
        return cls(tuple((int(values[end - 1]), end - start) for start, end in zip([0, *ends], ends, strict=False)))

    @classmethod
    def joined(cls, runs: Iterable[tuple[Version, int]]) -> "VersionRuns":
        """The same tokens as these runs, some of which may be empty or continue the one before."""
        merged: list[tuple[Version, int]] = []
        for version, count in runs:
            if merged and merged[-1][0] == version:
                merged[-1] = version, merged[-1][1] + count
            elif count:
                merged.append((version, count))
        return cls(tuple(merged))

    def __len__(self) -> int:
        return sum(count for _, count in self.runs)

    def __iter__(self) -> Iterator[Version]:
        return chain.from_iterable(repeat(version, count) for version, count in self.runs)

    def by_token(self) -> NDArray[np.int64]:
        versions, counts = zip(*self.runs, strict=True) if self.runs else ((), ())
        return np.repeat(np.array(versions, np.int64), np.array(counts, np.int64))

    def stretches(self) -> Iterator[tuple[Version, int, int]]:
        """Each version with where its run begins and ends (end excluded)."""
        start = 0
        for version, count in self.runs:
            yield version, start, start + count
            start += count

    @property
    def num_sampled(self) -> int:
        total = 0
        for version, count in self.runs:
            if version != NOT_SAMPLED:
                total += count
        return total

    @property
    def oldest(self) -> Version:
        """The oldest version that sampled a token; without any, NOT_SAMPLED."""
        return min((version for version, _ in self.runs if version != NOT_SAMPLED), default=NOT_SAMPLED)

    @property
    def newest(self) -> Version:
        """The newest version that sampled a token; without any, NOT_SAMPLED."""
        return max((version for version, _ in self.runs), default=NOT_SAMPLED)
