"""GSPO (Zheng et al. 2025): the ratio, the clip and the gradient of entire sequences.

    J = E  1/G Σ_i  min( s_i Â_i, clip(s_i, 1 − ε_low, 1 + ε_high) Â_i ),   ε_low 3e-4, ε_high 4e-4
    s_i = ( π_policy(o_i) / π_proximal(o_i) )^(1/|o_i|) = exp( mean over t of log π_policy − log π_proximal )

Rewards are for entire answers, so the ratio is too: the geometric mean of its tokens' ratios, through which the
gradient flows to every token alike. It moves far less than one token's ratio, hence the narrow clip. Each token carries
its sequence's loss, and the average by sequence makes one of them.

Changed from the paper: the clip is around the weights before the step, since around an older behavior policy nearly
every sequence would lie outside of so narrow a clip. w_t = π_proximal / π_behavior, capped token by token, corrects for
the rest; a sequence's weight is then their mean.

Shapes: A trained tokens; S sequences.
"""

from freerun.train.objective import Clip, Objective, TokenLoss, Tokens, clipped_gain, sequence_mean


def gspo(tokens: Tokens, clip: Clip) -> TokenLoss:
    log_ratio_A = tokens.policy_A - tokens.proximal_A
    ratio_S = sequence_mean(log_ratio_A, tokens.sequence_A, tokens.num_sequences).exp()
    return clipped_gain(ratio_S[tokens.sequence_A], tokens.advantages_A, clip)


OBJECTIVE = Objective(
    gspo,
    implies={
        "train.clip.low": 3e-4,
        "train.clip.high": 4e-4,
        "train.advantages": "group",
        "train.average": "sequence",
        "train.proximal": "recompute",
        "train.corrections": ["token"],
    },
)
