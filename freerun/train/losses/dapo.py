"""DAPO (Yu et al. 2025): GRPO for long chains of thought.

    J = E  1/Σ|o_i| Σ_i Σ_t  min( u_t Â_i, clip(u_t, 1 − ε_low, 1 + ε_high) Â_i ),   ε_low 0.2, ε_high 0.28

Its four parts are all settings that it implies: clip-higher, which lets unlikely tokens grow, is `train.clip.high`; the
loss by token is `train.average`; dynamic sampling, no group whose rewards are all equal, is `control.drop_no_signal`;
the soft punishment of overlong answers is `train.overlong_share`, over the last fifth of the longest answer as in
the paper (4,096 of 20,480 tokens).

Changed from the paper: tokens are averaged over the minibatch instead of over each group. The trust region is around
the weights before the step, and w_t = π_proximal / π_behavior corrects for older tokens, as in decoupled PPO;
`train.proximal=behavior` gives the paper's.
"""

from freerun.train.losses.ppo import ppo
from freerun.train.objective import Objective

OBJECTIVE = Objective(
    ppo,
    implies={
        "train.clip.low": 0.2,
        "train.clip.high": 0.28,
        "train.advantages": "group",
        "train.average": "token",
        "train.proximal": "recompute",
        "train.corrections": ["token"],
        "train.overlong_share": 0.2,
        "control.drop_no_signal": True,
    },
)
