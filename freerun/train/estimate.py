"""Advantages by token, for an entire batch: by a critic's values, or without one the reward less all that is still to
come of the penalty for parting from the reference (REINFORCE++).

A reward comes with the last token of the turn that it was given for: what is still to come falls by it there. A branch
has the rewards of its own trained turns; all that the member is given later comes with the branch's last token. So each
trained token has, undiscounted, the same to come as its member had there.

Shapes: A trained tokens; S sequences.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from freerun.train.advantages import EPSILON
from freerun.train.gae import gae
from freerun.train.packing import Packed
from freerun.train.ranks import Ranks


def estimate(micros: Sequence[Packed], gamma: float, lam: float, ranks: Ranks) -> None:
    """Put advantages and returns into the batch's micro-batches, whose advantages hold what is still to come of the
    rewards until then. They are normalised over the batch's tokens on all ranks."""
    moments = torch.zeros(3, device=micros[0].advantages_A.device, dtype=torch.float64)
    for micro in micros:
        values_A = torch.zeros_like(micro.advantages_A) if micro.values_A is None else micro.values_A
        last_S, given_A = _rewards(micro.advantages_A, micro.sequence_A, micro.num_sequences)
        if micro.penalty_A is not None:
            given_A = given_A - micro.penalty_A
        micro.advantages_A, micro.returns_A = gae(values_A, last_S, micro.sequence_A, gamma, lam, given_A)
        moments += torch.stack([(micro.advantages_A.double() ** power).sum() for power in range(3)])
    count, total, squares = ranks.sum(moments).tolist()
    spread = max(squares / count - (total / count) ** 2, 0.0) ** 0.5
    for micro in micros:
        micro.advantages_A = (micro.advantages_A - total / count) / (spread + EPSILON)


def _rewards(to_come_A: Tensor, sequence_A: Tensor, num_sequences: int) -> tuple[Tensor, Tensor]:
    """What comes with the last token of each sequence, and what with those before."""
    ends_A = torch.ones_like(sequence_A, dtype=torch.bool)
    ends_A[:-1] = sequence_A[1:] != sequence_A[:-1]
    last_S = to_come_A.new_zeros(num_sequences)
    last_S[sequence_A[ends_A]] = to_come_A[ends_A]
    return last_S, torch.where(ends_A, 0.0, to_come_A - to_come_A.roll(-1))
