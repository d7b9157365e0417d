"""Advantages by token from a critic: generalised advantage estimation (Schulman et al. 2016), and the critic's loss.

    δ_t = r_t + γ V_{t+1} − V_t,   Â_t = Σ_{j ≥ 0} (γλ)^j δ_{t+j},   return_t = Â_t + V_t

within a sequence, V after its last token being 0: an answer that was cut off counts as ended. The next token is the
next trained one; what a tool wrote in between takes no time.

Shapes: A trained tokens, sequence after sequence; S sequences.
"""

import torch
from torch import Tensor

from freerun.train.objective import TokenLoss


@torch.no_grad()
def gae(
    values_A: Tensor,
    rewards_S: Tensor,
    sequence_A: Tensor,
    gamma: float = 1.0,
    lam: float = 1.0,
    token_rewards_A: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Advantages and returns. `rewards_S` comes with each sequence's last token; `token_rewards_A`, rewards of
    turns and a penalty for parting from a reference, is added to it token by token."""
    same_A = torch.zeros_like(sequence_A, dtype=torch.bool)
    same_A[:-1] = sequence_A[1:] == sequence_A[:-1]
    rewards_A = torch.where(same_A, 0.0, rewards_S.to(values_A.dtype)[sequence_A])
    if token_rewards_A is not None:
        rewards_A = rewards_A + token_rewards_A
    next_values_A = torch.where(same_A, values_A.roll(-1), 0.0)
    advantages_A = discounted_sums(rewards_A + gamma * next_values_A - values_A, sequence_A, gamma * lam)
    return advantages_A, advantages_A + values_A


def discounted_sums(values_A: Tensor, sequence_A: Tensor, discount: float) -> Tensor:
    """Σ_{j ≥ 0} discount^j · value_{t+j}, to the end of t's sequence.

    By doubling: once every token holds the sum over its next n, adding discount^n times that of the token n further on
    makes it 2n. So a sequence of 32,768 takes 15 passes over all tokens, and errors grow with the logarithm of the
    length, since nothing is ever divided by a small power.
    """
    sums_A = values_A.clone()
    longest = int(torch.bincount(sequence_A, minlength=1).max())
    reach = 1
    while reach < longest:
        further_A = torch.where(sequence_A[reach:] == sequence_A[:-reach], sums_A[reach:], 0.0)
        sums_A[:-reach] += discount**reach * further_A
        reach *= 2
    return sums_A


def value_loss(values_A: Tensor, old_values_A: Tensor, returns_A: Tensor, clip: float) -> TokenLoss:
    """PPO's: ½ max( (V − return)², (clip(V, V_old − ε, V_old + ε) − return)² ), so no gain from moving V beyond ε."""
    held_A = values_A.clamp(old_values_A - clip, old_values_A + clip)
    free_loss_A, held_loss_A = (values_A - returns_A).square() / 2, (held_A - returns_A).square() / 2
    return TokenLoss(loss_A=torch.maximum(free_loss_A, held_loss_A), clipped_A=held_loss_A > free_loss_A)
