"""How the losses of tokens become the loss of a minibatch: Σ weight · loss.

The weights come from the lengths of all members of the minibatch, so that the result does not depend on how it was
cut into micro-batches. Importable without torch.
"""

from collections.abc import Sequence


def sequence_weights(trained: Sequence[int], average: str, longest: int) -> list[float]:
    """The weight of each token of each member; `trained[m]` is how many trained tokens member m has in all its branches
    together, at least one.

    token:     1 / Σ trained         every token counts the same         (DAPO, decoupled PPO)
    sequence:  1 / (M · trained[m])  every answer counts the same, so a long answer's tokens count less      (GRPO)
    constant:  1 / (M · longest)     as token, but the same for every minibatch: a step of short answers is a small
                                     step; `longest` is the most tokens an answer may have      (Dr.GRPO)
    """
    if average == "token":
        return [1 / sum(trained)] * len(trained)
    if average == "sequence":
        return [1 / (len(trained) * count) for count in trained]
    if average == "constant":
        return [1 / (len(trained) * longest)] * len(trained)
    raise ValueError(f"there is no average {average!r}")
