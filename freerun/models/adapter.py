"""Low-rank adapters (LoRA, Hu et al. 2021): W·x + (alpha / rank)·B·A·x, by the same code in trainer and engine.

The decoder's fused layers are adapted as they are: q, k and v share one A, and so do gate and up, which makes fewer
adapter parameters than one A for each. The adapter has tensors of its own beside the weight, so a new version of it is
copied into their place: whatever was captured or compiled with them stays valid.
"""

from collections.abc import Callable, Collection, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from freerun.models.decoder import Decoder
from freerun.models.quantised import QuantisedLinear, quantised_product, widened
from freerun.models.shape import AdapterShape

_A, _B = ".lora_a", ".lora_b"


class AdaptedLinear(nn.Linear):
    """A linear layer with an adapter beside its weight, which keeps its name and does not learn. Whoever computes with
    the weight itself, and not by calling the layer, leaves the adapter out."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float, dropout: float, lora_a: Tensor) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = base.in_features, base.out_features
        self.weight, self.bias = base.weight, base.bias
        self.rank, self.alpha, self.dropout = rank, alpha, dropout
        self.scale = base.scale if isinstance(base, QuantisedLinear) else None
        """The scales of weights of fewer bits: see `quantised.py`."""
        self.lora_a = nn.Parameter(lora_a)
        self.lora_b = nn.Parameter(lora_a.new_zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        """The adapter's part is added by the product that makes it, which rounds once: in bf16, too, engine and trainer
        round the same numbers."""
        plain, scale = self._plain(x), self.alpha / self.rank
        dropped = F.dropout(x.to(self.lora_a.dtype), self.dropout, self.training)
        within = F.linear(dropped, self.lora_a)
        if plain.dtype != within.dtype:
            return (plain + scale * F.linear(within, self.lora_b)).to(plain.dtype)
        rows = plain.view(-1, self.out_features)
        rows.addmm_(within.view(-1, self.rank), self.lora_b.t(), alpha=scale)
        return plain

    def _plain(self, x: Tensor) -> Tensor:
        if self.scale is None:
            return super().forward(x)
        return quantised_product(x, self.weight, self.scale, self.bias)

    def wide_weight(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """The matrix that `weight`, this layer's own unsharded, stands for."""
        return weight.to(dtype) if self.scale is None else widened(weight, self.scale, dtype)


def adapt(
    decoder: Decoder,
    adapter: AdapterShape,
    make_a: Callable[[nn.Linear], Tensor],
    targets: Collection[str] | None = None,
    dropout: float = 0.0,
) -> None:
    """Adapt the layers of these names, or all that can be, in place. `make_a` makes the A of each; B starts at zero:
    outputs stay the same."""
    for name in list(decoder.adaptable):
        holder, _, target = name.rpartition(".")
        if targets is None or target in targets:
            base, parent = decoder.get_submodule(name), decoder.get_submodule(holder)
            assert isinstance(base, nn.Linear)
            layer = AdaptedLinear(base, adapter.rank, adapter.alpha, dropout, make_a(base))
            setattr(parent, target, layer)


def adapt_to_compute(decoder: Decoder, adapter: AdapterShape) -> None:
    """For an engine: all layers, in the weights' own type, with an adapter that is zero until one comes."""
    adapt(decoder, adapter, lambda base: decoder.embed.weight.new_zeros(adapter.rank, base.in_features))


def adapted_layers(decoder: Decoder) -> Iterator[tuple[str, AdaptedLinear]]:
    return ((name, module) for name, module in decoder.named_modules() if isinstance(module, AdaptedLinear))


def is_adapted(decoder: Decoder) -> bool:
    return any(True for _ in adapted_layers(decoder))


def is_of_adapter(name: str) -> bool:
    """Whether a parameter of that name is an adapter's."""
    return name.endswith((_A, _B))


def is_scale(name: str) -> bool:
    """Whether a parameter of that name is a part of the weight beside it."""
    return name.endswith(".scale")


def changing(decoder: Decoder) -> dict[str, nn.Parameter]:
    """What a new version brings: the adapter alone, where there is one, and else every weight."""
    parameters = dict(decoder.named_parameters())
    adapter = {name: parameter for name, parameter in parameters.items() if is_of_adapter(name)}
    return adapter or parameters
