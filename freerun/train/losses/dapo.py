"""DAPO (Yu et al. 2025): GRPO for long chains of thought.

    J = E  1/Σ|o_i| Σ_i Σ_t  min( u_t Â_i, clip(u_t, 1 − ε_low, 1 + ε_high) Â_i ),   ε_low 0.2, ε_high 0.28

Its four parts, and where they are: clip-higher, which lets unlikely tokens grow, is the clip here; the loss by token is
the average here; dynamic sampling, no group whose rewards are all equal, is `control.drop_no_signal`; the soft
punishment of overlong answers is `train.overlong_tokens` (`overlong_penalty` in `advantages.py`).

Changed from the paper: tokens are averaged over the minibatch instead of over each group. The trust region is around
the weights before the step, and w_t = π_proximal / π_behavior corrects for older tokens, as in decoupled PPO;
`train.proximal=behavior` gives the paper's.
"""

from freerun.train.losses.base import Clip, Preset
from freerun.train.losses.ppo import ppo

PRESET = Preset(
    loss=ppo,
    clip=Clip(0.2, 0.28),
    advantages="group",
    average="token",
    proximal="recompute",
    corrections=("token",),
)
