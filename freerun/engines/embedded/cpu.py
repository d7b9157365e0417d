"""Runs steps on a CPU, in plain torch: the decoder, paged attention, one sampled token a sequence."""

import torch

from freerun.engines.embedded.cache import Cache, PagedAttention
from freerun.engines.embedded.launched_step import LaunchedStep
from freerun.engines.embedded.sampler import uniform
from freerun.engines.embedded.scheduler import Step
from freerun.engines.embedded.shaping import sample_rows
from freerun.models.decoder import Decoder


class CpuRunner:
    burst = 1
    ahead = False
    waited_s = 0.0
    short = True

    def __init__(self, decoder: Decoder, blocks: int, block_tokens: int) -> None:
        self._decoder = decoder
        self._cache = Cache(decoder.shape, blocks, block_tokens, decoder.embed.weight.dtype)

    @torch.inference_mode()
    def launch(self, step: Step) -> LaunchedStep:
        self._cache.copy(step.copies)
        tokens = torch.tensor([token for chunk in step.chunks for token in chunk.tokens])
        positions = torch.tensor([position for chunk in step.chunks for position in range(chunk.start, chunk.end)])
        hidden = self._decoder(tokens, positions, PagedAttention(self._cache, step.chunks))
        last, sequences, end = [], [], 0
        for chunk in step.chunks:
            end += len(chunk.tokens)
            if chunk.samples:
                last.append(end - 1)
                sequences.append(chunk.samples)
        if not sequences:
            return LaunchedStep.none()
        drawn = [uniform(s.request.sampling.seed, s.index, len(s.tokens)) for s in sequences]
        chosen, logprobs = sample_rows(self._decoder.logits(hidden[last]), sequences, drawn)
        return LaunchedStep(sequences, 1, lambda: ([[token] for token in chosen], [[logprob] for logprob in logprobs]))
