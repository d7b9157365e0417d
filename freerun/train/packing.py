"""Sequences into padding-free micro-batches.

Shapes: T tokens of all sequences in a row; A trained tokens among them (those with a loss).
"""

from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(slots=True)
class Packed:
    """One micro-batch. `rows_A` are the positions whose hidden state predicts the trained tokens `targets_A`."""

    tokens_T: Tensor
    positions_T: Tensor
    lengths: list[int]
    rows_A: Tensor
    targets_A: Tensor
    behavior_logprobs_A: Tensor
    advantages_A: Tensor
    versions_A: Tensor

    @property
    def num_trained(self) -> int:
        return len(self.targets_A)


def pack(samples: Sequence[Sample], advantages: Sequence[float]) -> Packed:
    """A token at position p of its sequence is predicted by p − 1; the first token of a sequence has no prediction."""
    tokens: list[int] = []
    rows: list[int] = []
    behavior: list[float] = []
    weights: list[float] = []
    versions: list[int] = []
    for sample, advantage in zip(samples, advantages, strict=True):
        trained = [p for p in range(1, len(sample.tokens)) if sample.loss_mask[p]]
        rows.extend(len(tokens) + p - 1 for p in trained)
        behavior.extend(sample.behavior_logprobs[p] for p in trained)
        versions.extend(sample.versions[p] for p in trained)
        weights.extend([advantage] * len(trained))
        tokens.extend(sample.tokens)
    tokens_T, rows_A = torch.tensor(tokens), torch.tensor(rows, dtype=torch.long)
    return Packed(
        tokens_T=tokens_T,
        positions_T=torch.cat([torch.arange(len(sample.tokens)) for sample in samples]),
        lengths=[len(sample.tokens) for sample in samples],
        rows_A=rows_A,
        targets_A=tokens_T[rows_A + 1],
        behavior_logprobs_A=torch.tensor(behavior),
        advantages_A=torch.tensor(weights),
        versions_A=torch.tensor(versions, dtype=torch.long),
    )


def num_trained(sample: Sample) -> int:
    """How many of its tokens carry a loss."""
    return sum(sample.loss_mask[1:])
