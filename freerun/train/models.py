"""What learns: the decoder with a head that scores tokens, or with one that values them."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from freerun.models.attention import packed_attention
from freerun.models.decoder import Choose, Decoder, likeliest
from freerun.train.context import ONE, Context, Whole
from freerun.train.head import cut_off_at, logprobs_and_entropy
from freerun.train.how_sampled import ALL, HowSampled
from freerun.train.packing import Packed
from freerun.train.routing import Routed, Routing


class Scores(NamedTuple):
    logprobs_A: Tensor
    """One for each trained token."""
    entropy_A: Tensor
    """Where it was sampled."""
    cut_off_P: Tensor | None
    """How far top-k and top-p are from the policy at the tokens of the probe, where there is one (`cutoffs.py`)."""
    routed: Routed | None
    """Which experts the tokens went through, where there are such."""


class PolicyModel(nn.Module):
    def __init__(self, decoder: Decoder, temperature: float, how: HowSampled = ALL, replays: bool = False) -> None:
        """`replays`: whether tokens go through the experts that they went through in the engine."""
        super().__init__()
        self.decoder = decoder
        self.temperature, self._how, self._replays = temperature, how, replays

    def forward(self, micro: Packed, context: Context = ONE) -> Scores:
        part = context.part(micro)
        layout, device = self.decoder.routes, micro.tokens_T.device
        routing = Routing(layout, part.routes_P if self._replays else None, device) if layout else None
        hidden_A = hidden_states(self.decoder, micro, part, routing or likeliest)
        head, readout = self.decoder.head, self.decoder.readout
        logprobs_A, entropy_A = logprobs_and_entropy(
            hidden_A, head.weight, part.targets_A, self.temperature, readout, head.bias
        )
        cut_off_P, routed = self._cut_off(hidden_A, micro, part), routing.routed if routing else None
        return Scores(part.told(logprobs_A), part.told(entropy_A), cut_off_P, routed)

    @torch.no_grad()
    def _cut_off(self, hidden_A: Tensor, micro: Packed, part: Whole) -> Tensor | None:
        if micro.probe_P is None or part.probe_P is None:
            return None
        found_A = hidden_A.new_zeros(len(hidden_A), dtype=torch.float32)
        head, readout = self.decoder.head, self.decoder.readout
        found_A[part.probe_P] = cut_off_at(
            hidden_A[part.probe_P], head.weight, self.temperature, self._how, readout, head.bias
        )
        return part.told(found_A)[micro.probe_P]


class CriticModel(nn.Module):
    """A decoder of its own, from the same start as the policy's, and a value that is 0 at first."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder
        decoder.head.requires_grad_(decoder.shape.tied)  # its own head is not used; a tied one is the embedding
        weight = decoder.embed.weight
        device = "cpu" if weight.is_meta else weight.device
        self.value = nn.Linear(decoder.shape.hidden, 1, device=device, dtype=weight.dtype)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)

    def forward(self, micro: Packed, context: Context = ONE) -> Tensor:
        """What is expected where each trained token was sampled."""
        part = context.part(micro)
        values: Tensor = self.value(hidden_states(self.decoder, micro, part))
        return part.told(values.squeeze(1).to(torch.promote_types(values.dtype, torch.float32)))


def hidden_states(decoder: Decoder, micro: Packed, part: Whole, choose: Choose = likeliest) -> Tensor:
    """At the positions that predict the part's trained tokens."""
    weight = decoder.embed.weight
    attend = packed_attention(micro.lengths, weight.device, weight.dtype, micro.prefixes)
    hidden_P: Tensor = decoder(part.tokens_P, part.positions_P, part.attention(attend), choose)
    return hidden_P[part.rows_A]
