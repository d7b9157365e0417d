"""On-policy distillation (Agarwal et al. 2023, "On-policy distillation of language models", by the reverse KL): the
policy's own answers, every token of them judged by a teacher.

    ∇J = E  Σ_t  w_t Â_t ∇ log π_policy(o_t),   Â_t = log π_teacher(o_t) − log π_proximal(o_t) − b
    b = mean over the batch's tokens of log π_teacher − log π_behavior

The expectation over tokens of the policy is − ∇ KL(π_policy ‖ π_teacher), position by position: what a token does to
later ones is left out, so there is a signal at each token, and no variance of what follows it. The baseline b changes
nothing on average, and takes much of the variance away: without it every token of a policy far from its teacher is made
less likely. The loss is PPO's without a clip, −u_t Â_t with u = π_policy / π_proximal, 1 at the step's beginning.

Changed from the paper: answers may be older than the weights, and w_t = min(π_proximal / π_behavior, cap) corrects for
it; no answers of the teacher or of the data are mixed in; and the divergence is taken at the sampled token instead of
over the whole vocabulary, so that all that is asked of a teacher is the log-probability of given tokens.

Rewards teach nothing (`train.advantages: none`); with `train.advantages: group_mean`, say, they are added to Â.
"""

from math import inf

from freerun.train.losses.ppo import ppo
from freerun.train.objective import Objective

OBJECTIVE = Objective(
    ppo,
    implies={
        "train.clip.low": 1.0,
        "train.clip.high": inf,
        "train.advantages": "none",
        "train.average": "token",
        "train.proximal": "recompute",
        "train.corrections": ["token"],
        "reward.judge": "teacher",
    },
    taught=True,
)
