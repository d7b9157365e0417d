"""REINFORCE++ (Hu et al. 2025): no critic and no groups; advantages normalised over the entire batch.

    J = E  Σ_t  min( u_t Â_t, clip(u_t, 1 − ε, 1 + ε) Â_t )
    A_t = r − β Σ_{i ≥ t} KL(i),   Â = (A − mean of the batch) / standard deviation of the batch

Normalising by group divides by a deviation that the very reward in question helped to make, which is biased; over a
large batch that vanishes. One answer a task is enough (`rollout.group_size=1`).

Changed from the paper: β is 0; the paper's penalty, k1 at each token, is `train.kl={apply_to: reward, estimator:
k1, coef: …}`. With it, mean and deviation are over the batch's tokens, as in the paper; without it all tokens of an
answer have the same A, and they are over answers, so that long answers do not count more. Older tokens are corrected
for as in decoupled PPO.
"""

from freerun.train.losses.ppo import ppo
from freerun.train.objective import Objective

OBJECTIVE = Objective(
    ppo,
    implies={
        "train.clip.low": 0.2,
        "train.clip.high": 0.2,
        "train.advantages": "batch",
        "train.average": "token",
        "train.proximal": "recompute",
        "train.corrections": ["token"],
    },
)
