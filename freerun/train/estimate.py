"""Advantages by token, for an entire batch: by a critic's values, or without one the reward less all that is still to
come of the penalty for parting from the reference (REINFORCE++).

Shapes: A trained tokens; S sequences.
"""

from collections.abc import Sequence

import torch

from freerun.train.advantages import EPSILON
from freerun.train.gae import gae
from freerun.train.packing import Packed
from freerun.train.ranks import Ranks


def estimate(micros: Sequence[Packed], gamma: float, lam: float, ranks: Ranks) -> None:
    """Put advantages and returns into the batch's micro-batches, whose advantages hold the reward until then. They are
    normalised over the batch's tokens on all ranks."""
    moments = torch.zeros(3, device=micros[0].advantages_A.device, dtype=torch.float64)
    for micro in micros:
        rewards_S = micro.advantages_A.new_zeros(micro.num_sequences)
        rewards_S[micro.sequence_A] = micro.advantages_A
        values_A = torch.zeros_like(micro.advantages_A) if micro.values_A is None else micro.values_A
        penalty_A = None if micro.penalty_A is None else -micro.penalty_A
        micro.advantages_A, micro.returns_A = gae(values_A, rewards_S, micro.sequence_A, gamma, lam, penalty_A)
        moments += torch.stack([(micro.advantages_A.double() ** power).sum() for power in range(3)])
    count, total, squares = ranks.sum(moments).tolist()
    spread = max(squares / count - (total / count) ** 2, 0.0) ** 0.5
    for micro in micros:
        micro.advantages_A = (micro.advantages_A - total / count) / (spread + EPSILON)
