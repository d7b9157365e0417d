"""Decoupled PPO (AReaL, Fu et al. 2025, after Hilton et al. 2022): the default objective.

    J = E over behaviour samples of  Σ_t  w_t · min( u_t Â_t, clip(u_t, 1 − ε, 1 + ε) Â_t )
    u_t = π_policy / π_proximal,   w_t = π_proximal / π_behavior   (a constant: no gradient flows through it)

The trust region is around the proximal policy, the weights before this step, instead of around whatever old policy
sampled the token; w_t corrects for the latter. With tokens sampled by the present weights w = 1, and this is PPO.

Changed from the paper: w_t is capped, because one token that the old policy found very unlikely would otherwise
outweigh the batch; the capped share is reported.

Shapes: A trained tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True)
class TokenLoss:
    """The loss of each token, not yet averaged, and what happened on the way, summed over tokens."""

    loss_A: Tensor
    clipped: Tensor
    capped: Tensor


def decoupled_ppo(
    policy_logprobs_A: Tensor,
    proximal_logprobs_A: Tensor,
    behavior_logprobs_A: Tensor,
    advantages_A: Tensor,
    clip_ratio: float,
    behavior_cap: float,
) -> TokenLoss:
    ratio_A = (policy_logprobs_A - proximal_logprobs_A).exp()
    clipped_A = ratio_A.clamp(1 - clip_ratio, 1 + clip_ratio)
    gain_A = torch.minimum(ratio_A * advantages_A, clipped_A * advantages_A)
    weight_A = (proximal_logprobs_A - behavior_logprobs_A).exp()
    return TokenLoss(
        loss_A=-weight_A.clamp(max=behavior_cap) * gain_A,
        clipped=(clipped_A * advantages_A < ratio_A * advantages_A).sum(),
        capped=(weight_A > behavior_cap).sum(),
    )
