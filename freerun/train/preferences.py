"""DPO (Rafailov et al. 2023): learn from pairs of a chosen and a rejected answer, without rewards and without sampling.

    L = − E  log σ( m ),   m = β [ log π(chosen) / π_ref(chosen)  −  log π(rejected) / π_ref(rejected) ]

Log-probabilities are sums over an answer's tokens; π_ref is the model that training began with, so m is 0 at first and
the loss log 2. m is the difference of two implicit rewards, β log π / π_ref; a pair counts as right where it is
positive.

An answer's two log-probabilities meet in one term, so both answers of a pair are in one micro-batch, and what they have
in common, the prompt at least, is computed once.

Shapes: A trained tokens of the micro-batch; S sequences, a pair's beside each other in `Pair`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from freerun.core import Sample
from freerun.train.objective import sequence_sum
from freerun.train.packing import Packed, dealt, pack, untrained
from freerun.train.prefixes import common, first_trained


class Pair(NamedTuple):
    """The log-probabilities that the reference gives to their tokens are their `behavior_logprobs`."""

    chosen: Sample
    rejected: Sample


def pairs_of(samples: Sequence[Sample]) -> list[Pair]:
    """From chosen and rejected answers in turns."""
    return [Pair(*two) for two in zip(samples[::2], samples[1::2], strict=True)]


@dataclass(frozen=True)
class PackedPairs:
    """One micro-batch of entire pairs; without any, a sequence of which nothing is trained."""

    packed: Packed
    chosen: list[int]
    """Which of its sequences are chosen, pair by pair, …"""
    rejected: list[int]
    """… and rejected."""

    def to(self, device: torch.device) -> "PackedPairs":
        return PackedPairs(self.packed.to(device), self.chosen, self.rejected)


def packed_pairs(pairs: Sequence[Pair], capacity: int, ranks: int = 1) -> list[list[PackedPairs]]:
    """Micro-batches for each rank, the same number for all. A pair longer than the capacity is alone."""
    lengths = [len(one.tokens) + len(other.tokens) - _shared(one, other) for one, other in pairs]
    shortest = min((sample for pair in pairs for sample in pair), key=lambda sample: len(sample.tokens))
    empty = PackedPairs(pack([untrained(shortest)]), [], [])
    shares = dealt(lengths, capacity, ranks)
    return [[_packed([pairs[i] for i in micro]) if micro else empty for micro in share] for share in shares]


def _shared(chosen: Sample, rejected: Sample) -> int:
    return min(common(chosen.tokens, rejected.tokens), first_trained(chosen), first_trained(rejected))


def _packed(pairs: Sequence[Pair]) -> PackedPairs:
    """Sequences are in the order in which they share most: see `packing.py`."""
    samples = [sample for pair in pairs for sample in pair]
    order = sorted(range(len(samples)), key=lambda place: first_trained(samples[place]))
    at = {place: sequence for sequence, place in enumerate(order)}
    places = range(0, len(samples), 2)
    return PackedPairs(pack([samples[i] for i in order]), [at[i] for i in places], [at[i + 1] for i in places])


class PairFigures(NamedTuple):
    """One of each a pair. Rewards are the implicit ones, β log π / π_ref."""

    loss_P: Tensor
    chosen_P: Tensor
    rejected_P: Tensor


def dpo(policy_A: Tensor, pairs: PackedPairs, beta: float) -> PairFigures:
    """`policy_A` are the policy's log-probabilities of the micro-batch's trained tokens."""
    packed = pairs.packed
    moved_A = policy_A - packed.behavior_A.to(policy_A.dtype)
    rewards_S = beta * sequence_sum(moved_A, packed.sequence_A, packed.num_sequences)
    chosen_P, rejected_P = rewards_S[pairs.chosen], rewards_S[pairs.rejected]
    return PairFigures(-logsigmoid(chosen_P - rejected_P), chosen_P, rejected_P)
