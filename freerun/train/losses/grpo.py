"""GRPO (DeepSeekMath, Shao et al. 2024): PPO with the group's rewards in the critic's place.

    J = E  1/G Σ_i  1/|o_i| Σ_t  min( u_t Â_i, clip(u_t, 1 − ε, 1 + ε) Â_i )  −  β k3
    Â_i = (r_i − mean of the group) / standard deviation of the group

Every answer counts the same, so the tokens of a long one count less each.

Changed from the paper: β is 0, so no reference model is held; the paper's is `train.kl.coef=0.04`. The trust region is
around the weights before the step, and w_t = π_proximal / π_behavior corrects for older tokens, as in decoupled PPO;
`train.proximal=behavior` gives the paper's, which was meant for fresh tokens.
"""

from freerun.train.losses.ppo import ppo
from freerun.train.objective import Objective

OBJECTIVE = Objective(
    ppo,
    implies={
        "train.clip.low": 0.2,
        "train.clip.high": 0.2,
        "train.advantages": "group",
        "train.average": "sequence",
        "train.proximal": "recompute",
        "train.corrections": ["token"],
    },
)
