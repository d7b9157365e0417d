"""What stands for the proximal log-probabilities, those of the weights before the step.

    recompute:    a forward pass of its own when the batch arrives; decoupled PPO
    interpolate:  log π_prox = α log π_behav + (1 − α) log π_policy,  α = 0 if d = 0 else 1/d; A-3PO (Li et al. 2025)
    behavior:     log π_prox = log π_behav; PPO and GRPO as published

d is the token's staleness. A-3PO saves the pass: it takes the policy to be d versions after the behavior policy, the
proximal policy to be one before it, and log-probabilities to move evenly in between. For a token one version old that
is the behavior policy; for a fresh one (d = 0) it is the policy itself, so there is no trust region: with several
minibatches a step and little staleness, recompute.

Shapes: A trained tokens.
"""

import torch
from torch import Tensor


def proximal_logprobs(
    how: str, policy_A: Tensor, behavior_A: Tensor, staleness_A: Tensor, recomputed_A: Tensor | None
) -> Tensor:
    """Without gradient. `recomputed_A` is asked for by `recompute` alone."""
    if how == "recompute":
        if recomputed_A is None:
            raise ValueError("proximal log-probabilities should be recomputed, and were not")
        return recomputed_A.detach()
    if how == "behavior":
        return behavior_A.detach()
    if how == "interpolate":
        staleness_A = staleness_A.to(policy_A.dtype)
        share_A = torch.where(staleness_A > 0, 1 / staleness_A, 0.0)
        return torch.lerp(policy_A.detach(), behavior_A.detach().to(policy_A.dtype), share_A)
    raise ValueError(f"there is no proximal policy {how!r}")
