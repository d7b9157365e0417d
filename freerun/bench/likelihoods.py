"""Log-probabilities in benchmarks: policies of random weights that are sure of some tokens, and how far an engine's are
from a trainer's."""

import torch
from torch import Tensor

from freerun.engines.embedded.sequence import EndedAnswer
from freerun.models.attention import packed_attention
from freerun.models.decoder import Decoder

Answered = tuple[list[int], EndedAnswer]
"""A prompt and its answer."""


def spread(decoder: Decoder) -> None:
    """Weights such that what goes into a layer comes out as large, and that the policy is sure of some tokens."""
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if parameter.dim() > 1:
                parameter.mul_((1.0 if "embed" in name else parameter.shape[1] ** -0.5) / 0.02)
        if decoder.shape.tied:
            decoder.embed.weight.mul_(2.0 * decoder.shape.hidden**-0.5)


@torch.inference_mode()
def logprobs_apart(judge: Decoder, answers: list[Answered]) -> float:
    """How far the answers' log-probabilities are from those of a packed pass, as a trainer makes one."""
    weight, apart = judge.embed.weight, list[Tensor]()
    for prompt, answer in answers:
        tokens_T = torch.tensor(prompt + answer.tokens, device=weight.device)
        attend = packed_attention([len(tokens_T)], weight.device, weight.dtype)
        hidden = judge(tokens_T, torch.arange(len(tokens_T), device=weight.device), attend)
        logprobs = judge.logits(hidden[len(prompt) - 1 : -1]).float().log_softmax(-1)
        found = logprobs.gather(1, tokens_T[len(prompt) :, None])[:, 0]
        apart.append((found - torch.tensor(answer.logprobs, device=weight.device)).abs())
    return float(torch.cat(apart).mean())
