"""RLOO (Kool et al. 2019; for language models Ahmadian et al. 2024, "Back to basics"): REINFORCE, leave-one-out.

    ∇J = E  Σ_i Â_i Σ_t ∇ log π_policy,   Â_i = r_i − mean of the other answers of its group

The baseline does not contain the answer's own reward, so the gradient is unbiased. There is no clip: PPO's loss is then
−u_t Â, u_t = π_policy / π_proximal, whose gradient is −u_t Â ∇ log π_policy, and u = 1 at the step's beginning.

Changed from the paper: it learns from fresh answers, we also from older ones: w_t = min(π_proximal / π_behavior, cap)
multiplies each token's loss, off-policy REINFORCE with truncated weights. The sum over tokens is divided by the
minibatch's tokens instead of its answers: the same direction, and steps that do not grow with the answers' length.
"""

from math import inf

from freerun.train.losses.ppo import ppo
from freerun.train.objective import Objective

OBJECTIVE = Objective(
    ppo,
    implies={
        "train.clip.low": 1.0,
        "train.clip.high": inf,
        "train.advantages": "rloo",
        "train.average": "token",
        "train.proximal": "recompute",
        "train.corrections": ["token"],
    },
)
