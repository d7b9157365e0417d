"""PPO (Schulman et al. 2017), without a critic.

    J = E  Σ_t  min( u_t Â_t, clip(u_t, 1 − ε, 1 + ε) Â_t ),   u_t = π_policy / π_proximal

The proximal policy is the behavior policy, as in the original: whatever sampled the token is also the
center of the trust region. That is the AReaL paper's "naive PPO": right for fresh tokens, while for old ones the clip
forbids what the step has not even begun to do (23 instead of 42 points at a staleness of 4).

Changed from the paper: advantages by group instead of a critic's; `train.advantages=gae` brings the critic back.

Shapes: A trained tokens.
"""

from freerun.train.objective import Clip, Objective, TokenLoss, Tokens, clipped_gain


def ppo(tokens: Tokens, clip: Clip) -> TokenLoss:
    ratio_A = (tokens.policy_A - tokens.proximal_A).exp()
    return clipped_gain(ratio_A, tokens.advantages_A, clip)


OBJECTIVE = Objective(
    ppo,
    implies={
        "train.clip.low": 0.2,
        "train.clip.high": 0.2,
        "train.advantages": "group",
        "train.average": "token",
        "train.proximal": "behavior",
        "train.corrections": [],
    },
)
