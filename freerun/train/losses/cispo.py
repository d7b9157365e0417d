"""CISPO (MiniMax-M1, 2025): clip the weight of a token, never its gradient.

    J = E  1/Σ|o_i| Σ_i Σ_t  sg[ min(u_t, 1 + ε_high) ] Â_i log π_policy,   u_t = π_policy / π_proximal

PPO's clip silences exactly the rare tokens that turn a thought around ("However", "Wait"), since they move most. Here
every token keeps a gradient: REINFORCE with a truncated importance weight, through which no gradient flows (sg).

The proximal policy is the behavior policy, as in the paper: u is then all the correction that older tokens
need. A lower bound exists, as in the paper, but is off (`low` is 1).

Changed from the paper: it names no ε_high; ours is 4, a weight of at most 5, the cap that decoupled PPO has here.

Shapes: A trained tokens.
"""

from freerun.train.objective import Clip, Objective, TokenLoss, Tokens


def cispo(tokens: Tokens, clip: Clip) -> TokenLoss:
    ratio_A = (tokens.policy_A - tokens.proximal_A).detach().exp()
    weight_A = ratio_A.clamp(1 - clip.low, 1 + clip.high)
    return TokenLoss(-weight_A * tokens.advantages_A * tokens.policy_A, clipped_A=weight_A != ratio_A)


OBJECTIVE = Objective(
    cispo,
    implies={
        "train.clip.low": 1.0,
        "train.clip.high": 4.0,
        "train.advantages": "group",
        "train.average": "token",
        "train.proximal": "behavior",
        "train.corrections": [],
    },
    refuses={"train.clip.dual": "cispo cuts every ratio; set train.clip.high"},
)
