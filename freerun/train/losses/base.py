"""What every objective is given, and what it gives back.

An objective is a pure function of one micro-batch: log-probabilities and advantages to a loss for each token. It does
not average (`average.py`), does not correct for tokens that an older policy sampled (`corrections.py`), and knows
nothing of optimizer, model or configuration.

Shapes: A trained tokens of the micro-batch, sequence after sequence; S sequences, always whole.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(slots=True, frozen=True)
class Tokens:
    """What an objective sees of one micro-batch."""

    policy_A: Tensor
    """Log-probabilities by the weights that learn; the only ones with a gradient."""
    proximal_A: Tensor
    """Log-probabilities by the weights before the step, or what stands for them (`proximal.py`)."""
    behavior_A: Tensor
    """Log-probabilities by whoever sampled the token."""
    advantages_A: Tensor
    sequence_A: Tensor
    """Which sequence of the micro-batch, 0 to S − 1, a token belongs to."""
    num_sequences: int
    staleness_A: Tensor
    """How many versions before this step's weights the token was sampled."""


@dataclass(slots=True, frozen=True)
class Clip:
    """A ratio is held within [1 − low, 1 + high]. A `low` of 1 leaves it free downwards, an infinite `high` upwards."""

    low: float
    high: float
    dual: float = math.inf
    """Where the advantage is negative, a ratio above this counts as this. Dual-clip PPO (Ye et al. 2019) has 3."""


@dataclass(slots=True)
class TokenLoss:
    """The loss of each token, not yet averaged, and where the clip took the gradient away (CISPO: cut it)."""

    loss_A: Tensor
    clipped_A: Tensor


class Objective(Protocol):
    def __call__(self, tokens: Tokens, clip: Clip) -> TokenLoss: ...


@dataclass(slots=True, frozen=True)
class Preset:
    """An objective with everything around it that its paper calls by the same name."""

    loss: Objective
    clip: Clip
    advantages: str
    average: str
    proximal: str
    corrections: tuple[str, ...] = ()


def clipped_gain(ratio_A: Tensor, advantages_A: Tensor, clip: Clip) -> TokenLoss:
    """PPO's pessimistic bound, −min( u Â, clip(u) Â ): no gain beyond the clip, but every loss in full. With a dual
    clip c, where Â < 0, −max( that gain, c Â ): no loss beyond c either."""
    held_A = ratio_A.clamp(1 - clip.low, 1 + clip.high)
    free_gain_A, held_gain_A = ratio_A * advantages_A, held_A * advantages_A
    gain_A, clipped_A = torch.minimum(free_gain_A, held_gain_A), held_gain_A < free_gain_A
    if clip.dual < math.inf:
        too_far_A = (advantages_A < 0) & (gain_A < clip.dual * advantages_A)
        gain_A, clipped_A = torch.where(too_far_A, clip.dual * advantages_A, gain_A), clipped_A | too_far_A
    return TokenLoss(loss_A=-gain_A, clipped_A=clipped_A)


def sequence_sum(values_A: Tensor, sequence_A: Tensor, num_sequences: int) -> Tensor:
    """The sum over each sequence's tokens, one number a sequence."""
    return values_A.new_zeros(num_sequences).index_add(0, sequence_A, values_A)


def sequence_mean(values_A: Tensor, sequence_A: Tensor, num_sequences: int) -> Tensor:
    """The mean over each sequence's tokens, one number a sequence."""
    lengths_S = sequence_sum(torch.ones_like(values_A), sequence_A, num_sequences)
    return sequence_sum(values_A, sequence_A, num_sequences) / lengths_S
