"""How much of the policy top-k and top-p left to sample from, at a few hundred of a step's tokens.

What was sampled by is the policy cut off and scaled up: q = p / m on the tokens that were left, where m is their mass.
So KL(q ‖ p) = −log m at each token, exactly. All tokens would take a sort of the vocabulary for each of them; the mean
over a probe of some hundred is as good.

Shapes: A trained tokens; P of them in the probe, C of these in a chunk; V vocabulary; K the likeliest of it.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from freerun.core import Sample
from freerun.train.how_sampled import HowSampled
from freerun.train.packing import Packed, num_trained

_PROBE = 512
"""Tokens of a step that are looked at, about."""
_LIKELIEST = 1024
"""Tokens of the vocabulary that top-p alone is looked up in. Where they do not reach it, each further one is less
likely than a thousandth, so that the mass that is left is top-p itself to that."""


class Probe:
    """Every so many trained tokens of a batch, the same ones however it is cut up and dealt to ranks."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._starts = [0, *accumulate(num_trained(sample) for sample in samples)]
        self._stride = max(1, self._starts[-1] // _PROBE)

    def mark(self, micros: Iterable[Packed], device: torch.device) -> None:
        for micro in micros:
            micro.probe_P = self.among(micro.places).to(device)

    def among(self, places: Sequence[int]) -> Tensor:
        """Which trained tokens of a micro-batch of these samples are in the probe."""
        numbers = [np.arange(self._starts[place], self._starts[place + 1]) for place in places]
        numbers_A = np.concatenate([np.zeros(0, np.int64), *numbers])
        return torch.from_numpy(np.flatnonzero(numbers_A % self._stride == 0))


def cut_off(logits_CV: Tensor, temperature: float, how: HowSampled) -> Tensor:
    """−log m of each row: how far it is, in nats, from what could be sampled of it. As the engine's `truncated`: top-k
    first, then top-p of what that left, up to the token that reaches it."""
    logits_CV = logits_CV.float() / temperature
    vocabulary = logits_CV.shape[-1]
    likeliest = min(how.top_k or _LIKELIEST, vocabulary)
    top_CK = (logits_CV.topk(likeliest).values - logits_CV.logsumexp(-1, keepdim=True)).exp()
    if how.top_p == 1.0:
        return -top_CK.sum(-1).clamp(max=1.0).log()
    among_CK = top_CK / top_CK.sum(-1, keepdim=True) if how.top_k else top_CK
    before_CK = among_CK.cumsum(-1) - among_CK
    kept_C = top_CK.where(before_CK < how.top_p, 0.0).sum(-1)
    if likeliest < vocabulary and not how.top_k:
        kept_C = kept_C.clamp(min=how.top_p)
    return -kept_C.clamp(max=1.0).log()
