"""Decoupled PPO (AReaL, Fu et al. 2025, after Hilton et al. 2022): the default objective.

    J = E over behavior samples of  Σ_t  w_t · min( u_t Â_t, clip(u_t, 1 − ε, 1 + ε) Â_t )
    u_t = π_policy / π_proximal,   w_t = π_proximal / π_behavior   (a constant: no gradient flows through it)

The trust region is around the proximal policy, the weights before this step, instead of around whatever old policy
sampled the token; w_t corrects for the latter. With tokens sampled by the present weights w = 1, and this is PPO.

Changed from the paper: w_t is capped, because one token that the old policy found very unlikely would otherwise
outweigh the batch; the capped share is reported. Advantages are by group; the paper's are `train.advantages=batch`. And
a token that is already 20% further than where it was sampled, in the direction it would be pushed, is left alone: the
paper's objective bounds how far a step pushes it, and not how far η steps together do. `train.corrections=[token]` is
the paper's.

The factors are separate here: PPO's loss with the proximal policy recomputed, and the corrections `token` and
`distance`.
"""

from freerun.train.losses.ppo import ppo
from freerun.train.objective import Objective

OBJECTIVE = Objective(
    ppo,
    implies={
        "train.clip.low": 0.2,
        "train.clip.high": 0.2,
        "train.advantages": "group",
        "train.average": "token",
        "train.proximal": "recompute",
        "train.corrections": ["token", "distance"],
    },
)
