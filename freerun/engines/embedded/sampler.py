"""From logits to tokens and their log-probabilities.

One uniform number a token, drawn from the sample's seed and the token's position alone, is looked up in the cumulative
distribution. So an answer does not depend on what else is in the batch, or on interruptions, up to floating point.
"""

import torch
from torch import Tensor

from freerun.engines.base import Sampling
from freerun.engines.embedded.sequence import mixed


def uniform(seed: int, index: int, position: int) -> float:
    """In [0, 1). 23 bits, so that float32 keeps it below 1."""
    return (mixed(seed, index, position) >> 41) / (1 << 23)


def sample(logits_RV: Tensor, how: list[Sampling], uniforms: list[float]) -> tuple[list[int], list[float]]:
    """A token and its behavior log-probability a row.

    The log-probability is that among all tokens, after temperature: top-k and top-p say which tokens may be sampled,
    and not how likely the policy finds them. Temperature 0 takes the likeliest token, with its log-probability at
    temperature 1.
    """
    temperature = torch.tensor([[s.temperature or 1.0] for s in how], device=logits_RV.device)
    logits_RV = logits_RV.float() / temperature
    logprobs_RV = logits_RV.log_softmax(-1)
    allowed_RV = truncated(logits_RV, how)
    chances_RV = logprobs_RV.exp() if allowed_RV is logits_RV else allowed_RV.softmax(-1)
    cumulative_RV = chances_RV.cumsum(-1)
    drawn = torch.tensor(uniforms, device=logits_RV.device)[:, None] * cumulative_RV[:, -1:]
    tokens_R1 = torch.searchsorted(cumulative_RV, drawn, right=True)
    tokens_R1.clamp_(max=logits_RV.shape[-1] - 1)  # beyond it where nothing is a number, which the engine refuses
    if any(s.temperature == 0 for s in how):
        greedy = torch.tensor([[s.temperature == 0] for s in how], device=logits_RV.device)
        tokens_R1 = torch.where(greedy, logits_RV.argmax(-1, keepdim=True), tokens_R1)
    return tokens_R1[:, 0].tolist(), logprobs_RV.gather(1, tokens_R1)[:, 0].tolist()


def truncated(logits_RV: Tensor, how: list[Sampling]) -> Tensor:
    """Logits with what min_p, top-k and top-p exclude at minus infinity. Rows that ask for none are untouched."""
    logits_RV = _above_min_p(logits_RV, how)
    if all(s.top_k == 0 and s.top_p == 1.0 for s in how):
        return logits_RV
    vocabulary = logits_RV.shape[-1]
    top_k = torch.tensor([[s.top_k or vocabulary] for s in how], device=logits_RV.device)
    top_p = torch.tensor([[s.top_p] for s in how], device=logits_RV.device)
    ordered, order = logits_RV.sort(dim=-1, descending=True)
    ordered = ordered.masked_fill(torch.arange(vocabulary, device=logits_RV.device) >= top_k, -torch.inf)
    probabilities = ordered.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities  # the first token that reaches top_p is kept
    ordered = ordered.masked_fill(((before >= top_p) & (top_p < 1.0)), -torch.inf)
    return torch.empty_like(logits_RV).scatter_(-1, order, ordered)


def _above_min_p(logits_RV: Tensor, how: list[Sampling]) -> Tensor:
    if not any(s.extras and s.extras.min_p for s in how):
        return logits_RV
    least = torch.tensor([[s.extras.min_p if s.extras else 0.0] for s in how], device=logits_RV.device)
    return logits_RV.masked_fill(logits_RV < logits_RV.amax(-1, keepdim=True) + least.log(), -torch.inf)
