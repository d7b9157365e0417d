"""What an objective is, what it is given, and what it gives back.

An objective's loss is a pure function of one micro-batch: log-probabilities and advantages to a loss for each token. It
does not average (`average.py`), does not correct for tokens that an older policy sampled (`corrections.py`), and knows
nothing of optimizer, model or configuration. What else its paper calls by the same name are settings, which it implies.

Importable without torch, and so is every file in `losses/`: the configuration asks an objective what it implies in
processes that never import torch. Tensors have methods for all that a loss needs.

Shapes: A trained tokens of the micro-batch, sequence after sequence; S sequences, none of them cut.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
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


class Loss(Protocol):
    def __call__(self, tokens: Tokens, clip: Clip) -> TokenLoss: ...


@dataclass(slots=True, frozen=True)
class Objective:
    """A loss, with everything around it that its paper calls by the same name."""

    loss: Loss
    implies: Mapping[str, Any] = field(default_factory=dict)
    """Settings by their keys, as on the command line: they hold unless the user sets them. What is not among them has
    its ordinary default."""
    taught: bool = False
    """Whether each token's advantage is what a teacher thinks of it, log π_teacher − log π_proximal, beside what
    rewards say (`train.teacher`)."""
    refuses: Mapping[str, str] = field(default_factory=dict)
    """Settings that would do nothing with this loss, by their keys, and what to do instead."""


def clipped_gain(ratio_A: Tensor, advantages_A: Tensor, clip: Clip) -> TokenLoss:
    """PPO's pessimistic bound, −min( u Â, clip(u) Â ): no gain beyond the clip, but every loss in full. With a dual
    clip c, where Â < 0, −max( that gain, c Â ): no loss beyond c either."""
    held_A = ratio_A.clamp(1 - clip.low, 1 + clip.high)
    free_gain_A, held_gain_A = ratio_A * advantages_A, held_A * advantages_A
    gain_A, clipped_A = free_gain_A.minimum(held_gain_A), held_gain_A < free_gain_A
    if clip.dual < math.inf:
        too_far_A = (advantages_A < 0) & (gain_A < clip.dual * advantages_A)
        gain_A, clipped_A = (clip.dual * advantages_A).where(too_far_A, gain_A), clipped_A | too_far_A
    return TokenLoss(loss_A=-gain_A, clipped_A=clipped_A)


def sequence_sum(values_A: Tensor, sequence_A: Tensor, num_sequences: int) -> Tensor:
    """The sum over each sequence's tokens, one number a sequence."""
    return values_A.new_zeros(num_sequences).index_add(0, sequence_A, values_A)


def sequence_mean(values_A: Tensor, sequence_A: Tensor, num_sequences: int) -> Tensor:
    """The mean over each sequence's tokens, one number a sequence."""
    lengths_S = sequence_sum(values_A.new_ones(len(values_A)), sequence_A, num_sequences)
    return sequence_sum(values_A, sequence_A, num_sequences) / lengths_S
