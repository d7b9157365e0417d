"""Runs steps in plain torch, on a CPU, or on a GPU with a decoder that is not ours: the decoder, paged attention, one
sampled token a sequence, or as many as were guessed."""

import torch
from torch import Tensor

from freerun.engines.embedded.cache import Cache, PagedAttention
from freerun.engines.embedded.launched_step import LaunchedStep, kept_tokens
from freerun.engines.embedded.routed import NOTHING, Routed
from freerun.engines.embedded.sampler import uniform
from freerun.engines.embedded.scheduler import Step
from freerun.engines.embedded.sequence import Chunk, Sequence
from freerun.engines.embedded.shaping import sample_rows
from freerun.models.decoder import Decoder, likeliest
from freerun.models.routes import RouteLayout, Routes


class PlainRunner:
    burst = 1
    guesses = 16
    guessing_rows = 0
    ahead = False
    waited_s = 0.0
    short = True

    def __init__(self, decoder: Decoder, blocks: int, block_tokens: int) -> None:
        self._decoder = decoder
        self._device = decoder.embed.weight.device
        self._cache = Cache(blocks, block_tokens)

    @torch.inference_mode()
    def launch(self, step: Step) -> LaunchedStep:
        self._cache.copy(step.copies)
        tokens = [token for chunk in step.chunks for token in chunk.tokens]
        positions = [position for chunk in step.chunks for position in range(chunk.start, chunk.end)]
        both = torch.tensor([tokens, positions], device=self._device)
        routing = Recording(self._decoder.routes) if self._decoder.routes else None
        attend = PagedAttention(self._cache, step.chunks, self._device)
        hidden = self._decoder(*both, attend, routing or likeliest)
        sampling: list[tuple[Sequence, Chunk]] = []
        rows: list[int] = []
        end = 0
        for chunk in step.chunks:
            end += len(chunk.tokens)
            if chunk.samples:
                sampling.append((chunk.samples, chunk))
                rows += range(end - 1 - chunk.guesses, end)
        routes = routing.routes if routing else None
        if not sampling:
            return LaunchedStep([], [], lambda: ([], []), lambda: routed(step.chunks, [], routes))
        sequences, most = [sequence for sequence, _ in sampling], [chunk.guesses + 1 for _, chunk in sampling]
        drawing = [
            (one, len(one.tokens) + at) for one, count in zip(sequences, most, strict=True) for at in range(count)
        ]
        drawn = [uniform(one.request.sampling.seed, one.index, at) for one, at in drawing]
        chosen, logprobs = sample_rows(self._decoder.logits(hidden[rows]), [one for one, _ in drawing], drawn)
        kept = kept_tokens([chunk for _, chunk in sampling], chosen, logprobs)
        counts = [len(new) for new in kept[0]]
        return LaunchedStep(sequences, most, lambda: kept, lambda: routed(step.chunks, counts, routes))


class Recording:
    """Takes the experts that the router likes best, and remembers which."""

    def __init__(self, layout: RouteLayout) -> None:
        self._layout = layout
        self._layers: dict[int, Tensor] = {}

    def __call__(self, layer: int, scores_TE: Tensor, k: int) -> Tensor:
        self._layers[layer] = chosen = likeliest(layer, scores_TE, k)
        return chosen

    @property
    def routes(self) -> Routes:
        chosen_TLk = torch.stack([self._layers[layer] for layer in range(self._layout.layers)], dim=1)
        return self._layout.encoded(chosen_TLk.cpu().numpy())


def routed(chunks: list[Chunk], counts: list[int], routes: Routes | None) -> Routed:
    """A step's rows by chunk; `counts` says how many tokens each that samples kept."""
    if routes is None:
        return NOTHING
    found, end, left = Routed([], []), 0, iter(counts)
    for chunk in chunks:
        end += len(chunk.tokens)
        if chunk.samples:
            first = end - 1 - chunk.guesses
            found.sampled.append(routes[first : first + next(left)])
        else:
            found.read.append((chunk, routes[end - len(chunk.tokens) : end]))
    return found
