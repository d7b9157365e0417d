"""A CPU runner that behaves as the GPU's: bursts of tokens, launched before the last burst has been looked at."""

import numpy as np
import torch

from freerun.engines.embedded.cache import PagedAttention
from freerun.engines.embedded.launched_step import LaunchedStep
from freerun.engines.embedded.plain import PlainRunner, Recording
from freerun.engines.embedded.routed import NOTHING, Routed
from freerun.engines.embedded.sampler import sample, uniform
from freerun.engines.embedded.scheduler import Step
from freerun.engines.embedded.sequence import UNKNOWN, Chunk, Sequence
from freerun.engines.embedded.shaping import is_special
from freerun.models.decoder import Decoder, likeliest


class AheadRunner(PlainRunner):
    burst = 3
    ahead = True
    short = False
    guesses = 0

    def __init__(self, decoder: Decoder, blocks: int, block_tokens: int) -> None:
        super().__init__(decoder, blocks, block_tokens)
        self._last: dict[Sequence, int] = {}
        """What the sequences of the last burst sampled last: the host has not seen it when the next burst starts."""

    @torch.inference_mode()
    def launch(self, step: Step) -> LaunchedStep:
        if self.short and is_special([chunk.samples for chunk in step.chunks if chunk.samples]):
            return super().launch(step)
        reading = [chunk for chunk in step.chunks if not chunk.samples]
        decoding = [(chunk, chunk.samples) for chunk in step.chunks if chunk.samples]
        self._cache.copy(step.copies)
        read = super().launch(Step(reading)).routed if reading else lambda: NOTHING
        sequences = [sequence for _, sequence in decoding]
        assert all(len(chunk.tokens) == 1 for chunk, _ in decoding)
        tokens = [self._last[s] if c.tokens[0] == UNKNOWN else c.tokens[0] for c, s in decoding]
        all_tokens: list[list[int]] = [[] for _ in sequences]
        all_logprobs: list[list[float]] = [[] for _ in sequences]
        all_routes = []
        for i in range(self.burst if sequences else 0):
            chunks = [Chunk([t], c.start + i, c.table) for t, (c, _) in zip(tokens, decoding, strict=True)]
            positions = torch.tensor([chunk.start for chunk in chunks])
            routing = Recording(self._decoder.routes) if self._decoder.routes else None
            attend = PagedAttention(self._cache, chunks, self._device)
            hidden = self._decoder(torch.tensor(tokens), positions, attend, routing or likeliest)
            all_routes += [routing.routes] if routing else []
            drawn = [uniform(s.request.sampling.seed, s.index, s.sampled + i) for s in sequences]
            tokens, logprobs = sample(self._decoder.logits(hidden), [s.request.sampling for s in sequences], drawn)
            for row, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
                all_tokens[row].append(token)
                all_logprobs[row].append(logprob)
        self._last = dict(zip(sequences, tokens, strict=True))
        sampled = list(np.stack(all_routes, axis=1)) if all_routes else []
        return LaunchedStep(
            sequences,
            [self.burst] * len(sequences),
            lambda: (all_tokens, all_logprobs),
            lambda: Routed(read().read, sampled),
        )
