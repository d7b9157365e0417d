"""Dr.GRPO (Liu et al. 2025, "Understanding R1-Zero-like training"): GRPO without its two divisions.

    J = E  1/G Σ_i  1/L Σ_t  min( u_t Â_i, clip(u_t, 1 − ε, 1 + ε) Â_i ),   Â_i = r_i − mean of the group

GRPO's 1/|o_i| makes a wrong answer cheaper the longer it is, so wrong answers grow; its division by the standard
deviation weighs tasks that are nearly always or nearly never solved most. L is a constant, the most tokens an answer
may have, which only sets the scale.

Changed from the paper: the trust region is around the weights before the step, and w_t = π_proximal / π_behavior
corrects for older tokens, as in decoupled PPO; `train.proximal=behavior` gives the paper's.
"""

from freerun.train.losses.ppo import ppo
from freerun.train.objective import Objective

OBJECTIVE = Objective(
    ppo,
    implies={
        "train.clip.low": 0.2,
        "train.clip.high": 0.2,
        "train.advantages": "group_mean",
        "train.average": "constant",
        "train.proximal": "recompute",
        "train.corrections": ["token"],
    },
)
