"""Whether a step has left a policy behind that is of any use: looked at before its version is published or saved.

Weights grow out of all measure before anything computed with them stops being a number, so one look at the largest is
enough. It costs a pass over the weights, a few thousandths of a step.
"""

import torch

from freerun.core import TrainerError
from freerun.train.learner import Learner
from freerun.train.ranks import Ranks, own

LARGEST = 1e5
"""No trained model has weights of this size. Products along a decoder stay well within float32 up to here."""


def refuse_divergence(learner: Learner, metrics: dict[str, float], ranks: Ranks) -> None:
    """Look at what a step has just made, and refuse it if it has diverged; it is not saved then (`Learner.savable`)."""
    wrong = None
    if _num_beyond(learner.policy.parameters, ranks):
        wrong = "weights are not finite, or far too large"
    elif metrics.get("effective_samples", 1.0) == 0.0:
        wrong = "no token that was sampled is at all likely any more"
    if wrong:
        learner.savable = False
        raise TrainerError(
            f"the policy has diverged at step {learner.version} ({wrong}): lower train.lr, which is "
            f"{metrics.get('lr', 0.0):g}, and look at the rewards for outliers"
        )


@torch.no_grad()
def _num_beyond(parameters: list[torch.nn.Parameter], ranks: Ranks) -> int:
    """Tensors with a weight that is not a number or beyond `LARGEST`, on the rank that has most of them."""
    shares = [share for parameter in parameters if (share := own(parameter)).numel()]
    largest = torch.stack(torch._foreach_norm(shares, torch.inf)) if shares else torch.zeros(1, device=ranks.device)
    return int(ranks.max((~(largest <= LARGEST)).sum()).item())
