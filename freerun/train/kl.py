"""How far the policy has gone from a reference: KL(policy ‖ reference), estimated from the sampled tokens.

With r = π_reference / π_policy at the sampled token (Schulman 2020, "Approximating KL divergence"):

    k1 = −log r              unbiased, may be negative
    k2 = ½ (log r)²          biased, never negative
    k3 = r − 1 − log r       unbiased, never negative, small variance

A good estimate is not yet a good loss (Liu et al. 2025, "Rethinking KL regularization in RLHF"). On average over tokens
of the policy, the gradient of k1 is zero: k1 belongs into the reward. That of k2 is the gradient of
KL(policy ‖ reference), the one that k1 in the reward gives too. That of k3 is the gradient of KL(reference ‖ policy),
near it while the two are close; GRPO uses k3.

Shapes: A trained tokens.
"""

from torch import Tensor


def kl_estimate(how: str, policy_A: Tensor, reference_A: Tensor) -> Tensor:
    """The estimate at each token, with the policy's gradient. Arguments are log-probabilities."""
    log_ratio_A = reference_A.detach() - policy_A
    if how == "k1":
        return -log_ratio_A
    if how == "k2":
        return 0.5 * log_ratio_A.square()
    if how == "k3":
        return log_ratio_A.exp() - 1 - log_ratio_A
    raise ValueError(f"there is no estimate {how!r} of the KL divergence")
