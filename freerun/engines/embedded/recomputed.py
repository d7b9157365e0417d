"""What an answer's log-probabilities would be if its cache were of the present weights."""

import torch

from freerun.engines.embedded.sequence import Sequence
from freerun.models.attention import packed_attention
from freerun.models.decoder import Decoder


@torch.inference_mode()
def recomputed_logprobs(decoder: Decoder, sequence: Sequence, last: int) -> list[float]:
    """The log-probabilities of its last known tokens, by one pass over prompt and answer that touches no cache."""
    tokens = sequence.request.prompt + sequence.tokens
    weight = decoder.embed.weight
    tokens_T = torch.tensor(tokens, device=weight.device)
    attend = packed_attention([len(tokens)], weight.device, weight.dtype)
    hidden = decoder(tokens_T, torch.arange(len(tokens), device=weight.device), attend)
    logits_RV = decoder.logits(hidden[-last - 1 : -1]).float() / (sequence.request.sampling.temperature or 1.0)
    found: list[float] = logits_RV.log_softmax(-1).gather(1, tokens_T[-last:, None]).flatten().tolist()
    return found
