"""What the weights before a step make of its tokens, one by one: for whoever shows samples, and to take drift apart.

Every rank has it of its micro-batches. It stays on the device until the step is learned, goes to the first rank in one
message, and is put in the order of the batch there.

Shapes: A trained tokens of a micro-batch; S samples of the batch; T all their tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from freerun.core import Batch, Sample, Version
from freerun.core.nouns import NOT_SAMPLED, Logprobs, Marks
from freerun.train.drift import Compared
from freerun.train.packing import Packed, num_trained
from freerun.train.ranks import Ranks

MOST = 4_000_000
"""Trained tokens of a step that are told, 16 MB; of a larger batch, those of its first samples."""


class Before:
    """Collects micro-batches."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._micros: list[tuple[list[int], Tensor]] = []

    def add(self, micro: Packed, before_A: Tensor) -> None:
        self._micros.append((micro.places, before_A.detach().float()))

    def tokens(self, batch: Batch) -> "BatchTokens | None":
        """On the first rank, all that was collected. All ranks have to call this."""
        places = [place for those, _ in self._micros for place in those]
        values = [before_A for _, before_A in self._micros]
        mine = torch.cat(values).cpu().numpy() if values else np.zeros(0, np.float32)
        told = self._ranks.for_first((places, mine.tobytes()))
        if not self._ranks.is_first:
            return None
        return BatchTokens.of(batch.samples, [(each, np.frombuffer(data, np.float32)) for each, data in told])


@dataclass(slots=True, frozen=True)
class BatchTokens:
    """All tokens of a batch in a row."""

    samples: Sequence[Sample]
    lengths_S: NDArray[np.int64]
    versions_T: NDArray[np.int64]
    before_T: Logprobs
    """NaN where it was not computed."""
    complete: bool
    """Nothing was left out for being too much."""

    @classmethod
    def of(cls, samples: Sequence[Sample], told: Sequence[tuple[list[int], Logprobs]]) -> "BatchTokens":
        """`told` has places of samples, and the values of all their trained tokens."""
        lengths_S = np.array([len(sample.tokens) for sample in samples], np.int64)
        runs = [run for sample in samples for run in sample.versions.runs]
        versions, counts = np.array(runs, np.int64).reshape(-1, 2).T
        trained_T = _joined([sample.loss_mask for sample in samples], np.bool_)
        trained_T[(np.cumsum(lengths_S) - lengths_S)[lengths_S > 0]] = False  # the first token has no prediction
        trained_S = np.array([num_trained(sample) for sample in samples], np.int64)
        ends_S = np.cumsum(trained_S)
        values = np.full(trained_S.sum(), np.nan, np.float32)
        for places, found in told:
            start = 0
            for place in places:
                end = start + int(trained_S[place])
                if ends_S[place] <= MOST:
                    values[ends_S[place] - trained_S[place] : ends_S[place]] = found[start:end]
                start = end
        before_T = np.full(len(trained_T), np.nan, np.float32)
        before_T[trained_T] = values
        return cls(samples, lengths_S, np.repeat(versions, counts), before_T, len(values) <= MOST)

    def by_sample(self) -> list[Logprobs]:
        """One array for each sample: its sampled tokens."""
        sampled_T = self.versions_T != NOT_SAMPLED
        ends_S = np.cumsum([sample.num_sampled for sample in self.samples], dtype=np.int64)
        return np.split(self.before_T[sampled_T], ends_S[:-1])

    def compared(self, version: Version, groups_S: NDArray[np.int64] | None) -> Compared:
        """Those of sampled tokens; `groups_S` says which group each sample is of, where caches may be mixed."""
        known_T = np.isfinite(self.before_T) & (self.versions_T != NOT_SAMPLED)
        behavior_T = _joined([sample.behavior_logprobs for sample in self.samples], np.float32)
        mixed_T = np.zeros_like(known_T) if groups_S is None else self._mixed(groups_S)
        return Compared(
            self.before_T[known_T].astype(np.float64) - behavior_T[known_T],
            version - self.versions_T[known_T],
            mixed_T[known_T],
            np.repeat(np.arange(len(self.samples)), self.lengths_S)[known_T],
        )

    def _mixed(self, groups_S: NDArray[np.int64]) -> Marks:
        """Where part of the cache may be older than the weights: behind the first swap within a turn, since the next
        turn is another request, whose prompt is read anew; and in first turns behind the oldest of their group, whose
        prompt is read once for all of it."""
        sample_T = np.repeat(np.arange(len(self.samples)), self.lengths_S)
        sampled_T: Marks = self.versions_T != NOT_SAMPLED
        begins_T = sampled_T.copy()
        begins_T[1:] &= ~sampled_T[:-1] | (sample_T[1:] != sample_T[:-1])
        begins = np.flatnonzero(begins_T)
        if not len(begins):
            return sampled_T
        turn_T = np.cumsum(begins_T) - 1  # of a token that was not sampled, the turn before it
        oldest = self.versions_T[begins]
        _, first = np.unique(sample_T[begins], return_index=True)
        group = groups_S[sample_T[begins[first]]]
        oldest_in_group = np.full(int(groups_S.max()) + 1, np.iinfo(np.int64).max)
        np.minimum.at(oldest_in_group, group, oldest[first])
        oldest[first] = oldest_in_group[group]
        mixed_T: Marks = sampled_T & (self.versions_T > oldest[np.maximum(turn_T, 0)])
        return mixed_T


def _joined(arrays: Sequence[NDArray[np.generic]], dtype: type[np.generic]) -> NDArray[np.generic]:
    """A copy, also of one alone or none."""
    return np.concatenate([np.zeros(0, dtype), *arrays])
