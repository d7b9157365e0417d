"""Sequences into padding-free micro-batches.

Shapes: T tokens of all sequences in a row; A trained tokens among them (those with a loss); S sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from freerun.core import Sample


def micro_batches(lengths: Sequence[int], capacity: int, least: int = 1) -> list[list[int]]:
    """The paper's Algorithm 1: which sequences go together, so that none exceeds `capacity` tokens.

    Longest first; a new micro-batch is opened while there are fewer than `least`, or when the sequence fits nowhere;
    otherwise it joins the fitting one that holds the fewest sequences. A sequence longer than the capacity is alone.
    """
    batches: list[list[int]] = []
    used: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        fitting = [b for b in range(len(batches)) if used[b] + lengths[index] <= capacity]
        if len(batches) < least or not fitting:
            batches.append([index])
            used.append(lengths[index])
        else:
            chosen = min(fitting, key=lambda b: len(batches[b]))
            batches[chosen].append(index)
            used[chosen] += lengths[index]
    return batches


def dealt(lengths: Sequence[int], capacity: int, ranks: int) -> list[list[list[int]]]:
    """Micro-batches for each rank, the same number for all, and those computed at the same time of similar size.

    Where there are too few sequences for that, some micro-batches are empty.
    """
    batches = micro_batches(lengths, capacity, ranks)
    while len(batches) % ranks and len(batches) < len(lengths):
        batches = micro_batches(lengths, capacity, len(batches) + ranks - len(batches) % ranks)
    batches += [[] for _ in range(-len(batches) % ranks)]
    batches.sort(key=lambda batch: -sum(lengths[i] for i in batch))
    return [batches[rank::ranks] for rank in range(ranks)]


@dataclass(slots=True)
class Packed:
    """One micro-batch. `rows_A` are the positions whose hidden state predicts the trained tokens `targets_A`."""

    tokens_T: Tensor
    positions_T: Tensor
    lengths: list[int]
    rows_A: Tensor
    targets_A: Tensor
    behavior_A: Tensor
    """Log-probabilities by whoever sampled the token."""
    advantages_A: Tensor
    versions_A: Tensor
    sequence_A: Tensor
    """Which sequence of the micro-batch a trained token belongs to."""
    weights_A: Tensor
    """What the token counts in the loss of the minibatch."""
    proximal_A: Tensor | None = None
    """Log-probabilities by the weights before the step, where they had to be computed."""
    reference_A: Tensor | None = None
    """Log-probabilities by the model that training began with, where it matters."""
    values_A: Tensor | None = None
    """The critic's, before the step."""
    returns_A: Tensor | None = None

    @property
    def num_trained(self) -> int:
        return len(self.targets_A)

    @property
    def num_sequences(self) -> int:
        return len(self.lengths)

    def to(self, device: torch.device) -> "Packed":
        if device.type == "cpu":
            return self
        names = [name for name in self.__slots__ if isinstance(getattr(self, name), Tensor)]
        return replace(self, **{n: getattr(self, n).pin_memory().to(device, non_blocking=True) for n in names})


def pack(
    samples: Sequence[Sample], advantages: Sequence[float] | None = None, weights: Sequence[float] | None = None
) -> Packed:
    """A token at position p of its sequence is predicted by p − 1; the first token of a sequence has no prediction.

    Advantage and weight are those of each token of a sequence; without them, 0 and 1.
    """
    lengths = [len(sample.tokens) for sample in samples]
    starts = np.cumsum([0, *lengths[:-1]])
    trained = [np.flatnonzero(sample.loss_mask[1:]) for sample in samples]
    counts = [len(rows) for rows in trained]

    def picked(per_token: Sequence[Sequence[float]], dtype: type) -> np.ndarray:
        return np.concatenate([np.array(row, dtype)[at + 1] for row, at in zip(per_token, trained, strict=True)])

    def spread(per_sequence: Sequence[float]) -> Tensor:
        return torch.from_numpy(np.repeat(np.array(per_sequence, np.float32), counts))

    tokens_T = torch.from_numpy(np.concatenate([np.array(sample.tokens, np.int64) for sample in samples]))
    rows_A = torch.from_numpy(np.concatenate([start + at for start, at in zip(starts, trained, strict=True)]))
    return Packed(
        tokens_T=tokens_T,
        positions_T=torch.cat([torch.arange(length) for length in lengths]),
        lengths=lengths,
        rows_A=rows_A,
        targets_A=tokens_T[rows_A + 1],
        behavior_A=torch.from_numpy(picked([sample.behavior_logprobs for sample in samples], np.float32)),
        advantages_A=spread(advantages or [0.0] * len(samples)),
        versions_A=torch.from_numpy(picked([sample.versions for sample in samples], np.int64)),
        sequence_A=torch.from_numpy(np.repeat(np.arange(len(samples)), counts)),
        weights_A=spread(weights or [1.0] * len(samples)),
    )


def num_trained(sample: Sample) -> int:
    """How many of its tokens carry a loss."""
    return sum(sample.loss_mask[1:])


def untrained(sample: Sample) -> Sample:
    """The same tokens, none with a loss."""
    return replace(sample, loss_mask=[False] * len(sample.tokens))
