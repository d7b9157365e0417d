"""Our own code for Llama, SmolLM2, Qwen2 and Qwen3, and for the mixtures of experts Qwen3-MoE, Mixtral and OLMoE: fast,
and the same in engine and trainer.

Query, key and value projections are one matrix, and so are gate and up, and the experts of a layer (`experts.py`).
`models/checkpoint.py` maps that to Hugging Face's names and back. Whatever type the weights have, the residual stream,
norms and rotations are in float32: rounding those is most of what bf16 would cost.

Shapes: T tokens, H query heads, K key/value heads, D head dimension.
"""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from freerun.models.aside import waiting_aside
from freerun.models.decoder import Attend, Choose, Decoder, Recompute, likeliest
from freerun.models.experts import ExpertMatrices, router_scores, through_experts, weights_of
from freerun.models.rope import inverse_frequencies, strength
from freerun.models.shape import Experts, Shape

Rotary = tuple[Tensor, Tensor]
"""Cosines and sines of each token's angles."""


class OwnDecoder(Decoder):
    """Its weights are not yet those of a model: load or initialise them.

    `load_decoder` builds it on the meta device, where torch imports its compiler, which takes a second, to draw random
    numbers or to count. So the embedding is left unfilled, and the frequencies are computed on the CPU.
    """

    inv_freq: Tensor
    layers: nn.ModuleList

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.embed = nn.Embedding(shape.vocab_size, shape.hidden, _weight=torch.empty(shape.vocab_size, shape.hidden))
        mixtures = shape.experts.layers if shape.experts else ()
        self.layers = nn.ModuleList(
            (ExpertLayer if index in mixtures else Layer)(shape, index) for index in range(shape.layers)
        )
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)
        self.head = nn.Linear(shape.hidden, shape.vocab_size, bias=False)
        if shape.tied:
            self.head.weight = self.embed.weight
        self.register_buffer("inv_freq", inverse_frequencies(shape), persistent=False)
        self._strength = strength(shape)

    def forward(self, tokens_T: Tensor, positions_T: Tensor, attend: Attend, choose: Choose = likeliest) -> Tensor:
        embedded = self.embed(tokens_T)
        hidden = embedded.to(torch.promote_types(embedded.dtype, torch.float32))
        rotary = self._rotary(positions_T)
        for layer in self.layers:
            hidden = layer(hidden, rotary, attend, choose)
        return normed(hidden, self.norm)

    @property
    def adaptable(self) -> Iterator[str]:
        """Neither experts nor routers: an adapter for each expert would be as large as what it adapts is used."""
        for layer in self.layers:
            assert isinstance(layer, Layer)
            yield from (f"layers.{layer.index}.{name}" for name in layer.adaptable)

    def arrange(self, compiled: bool, recompute: Recompute) -> None:
        """Compile the parts of a layer around its attention and its experts' products, once for all layers and lengths;
        and do not keep what is inside them for the backward pass. The attention itself is not computed twice, unless
        "all" is to be: then a layer leaves only what came into it, with "offload" in the machine's memory."""
        parts = {part: part for part in (Layer.project, Layer.feed, ExpertLayer.prepare, ExpertLayer.spread)}
        arranged: dict[Callable[..., Any], Callable[..., Any]] = dict(parts)
        if compiled:
            arranged |= {
                part: torch.compile(part, dynamic=True) for part in (Layer.project, Layer.feed, ExpertLayer.prepare)
            }
        if recompute is True:
            arranged = {part: partial(checkpoint, made, use_reentrant=False) for part, made in arranged.items()}
        if compiled or recompute:
            for layer in self.layers:
                assert isinstance(layer, Layer)
                for part in layer.parts:
                    setattr(layer, part.__name__, partial(arranged[part], layer))
        for layer in self.layers if recompute in ("all", "offload") else ():
            layer.forward = partial(_again, layer.forward, recompute == "offload")

    def _rotary(self, positions_T: Tensor) -> Rotary:
        angles = positions_T[:, None].float() * self.inv_freq
        angles = torch.cat((angles, angles), dim=-1)[:, None, :]
        return angles.cos() * self._strength, angles.sin() * self._strength


class Layer(nn.Module):
    def __init__(self, shape: Shape, index: int) -> None:
        super().__init__()
        self.index = index
        self.heads = [shape.heads, shape.kv_heads, shape.kv_heads]
        self.head_dim = shape.head_dim
        self.norms_wide = shape.wide_qk_norm
        self.attention_norm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)
        self.qkv = nn.Linear(shape.hidden, sum(self.heads) * shape.head_dim, bias=shape.qkv_bias)
        self.out = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=shape.out_bias)
        self.q_norm, self.k_norm = _qk_norm(shape, shape.heads), _qk_norm(shape, shape.kv_heads)
        self.mlp_norm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)
        self._make_feed_forward(shape)

    def _make_feed_forward(self, shape: Shape) -> None:
        self.gate_up = nn.Linear(shape.hidden, 2 * shape.ffn, bias=shape.mlp_bias)
        self.down = nn.Linear(shape.ffn, shape.hidden, bias=shape.mlp_bias)

    @property
    def adaptable(self) -> tuple[str, ...]:
        return "qkv", "out", "gate_up", "down"

    @property
    def parts(self) -> list[Callable[..., Any]]:
        """Its methods that may be compiled, or computed again."""
        return [Layer.project, Layer.feed]

    def forward(self, hidden: Tensor, rotary: Rotary, attend: Attend, choose: Choose = likeliest) -> Tensor:
        return self.feed(hidden, attend(self.index, *self.project(hidden, rotary)))

    def project(self, hidden: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values."""
        qkv = self.qkv(normed(hidden, self.attention_norm))
        if self.norms_wide:
            qkv = self.normed_wide(qkv)
        q, k, v = torch.split(qkv.unflatten(-1, (-1, self.head_dim)), self.heads, dim=1)
        if not self.norms_wide:
            q, k = normed(q, self.q_norm), normed(k, self.k_norm)
        return rotate(q, rotary), rotate(k, rotary), v

    def normed_wide(self, qkv: Tensor) -> Tensor:
        """Queries normed over all heads together, and so are keys (OLMoE)."""
        q, k, v = torch.split(qkv, [heads * self.head_dim for heads in self.heads], dim=1)
        return torch.cat((normed(q, self.q_norm), normed(k, self.k_norm), v), dim=1)

    def feed(self, hidden: Tensor, read_THD: Tensor) -> Tensor:
        """What comes after the attention."""
        hidden = hidden + self.out(read_THD.flatten(1))
        gate, up = self.gate_up(normed(hidden, self.mlp_norm)).chunk(2, dim=-1)
        fed: Tensor = self.down(F.silu(gate) * up)
        return hidden + fed


class ExpertLayer(Layer):
    """A layer whose tokens go through some of many feed-forward networks."""

    experts: Experts

    def _make_feed_forward(self, shape: Shape) -> None:
        assert shape.experts
        self.experts = experts = shape.experts
        self.place = experts.layers.index(self.index)
        """Its number among the layers that have experts."""
        self.router = nn.Linear(shape.hidden, experts.count, bias=False)
        self.expert_gate_up = ExpertMatrices(experts.count, 2 * experts.ffn, shape.hidden)
        self.expert_down = ExpertMatrices(experts.count, shape.hidden, experts.ffn)

    @property
    def adaptable(self) -> tuple[str, ...]:
        return "qkv", "out"

    @property
    def parts(self) -> list[Callable[..., Any]]:
        return [Layer.project, ExpertLayer.prepare, ExpertLayer.spread]

    def forward(self, hidden: Tensor, rotary: Rotary, attend: Attend, choose: Choose = likeliest) -> Tensor:
        hidden, x = self.prepare(hidden, attend(self.index, *self.project(hidden, rotary)))
        scores = router_scores(x, self.router.weight)
        with torch.no_grad():
            chosen = choose(self.place, scores, self.experts.per_token)
        return self.spread(hidden, x, scores, chosen)

    def prepare(self, hidden: Tensor, read_THD: Tensor) -> tuple[Tensor, Tensor]:
        """The residual stream behind the attention, and what router and experts see of it."""
        hidden = hidden + self.out(read_THD.flatten(1))
        return hidden, normed(hidden, self.mlp_norm)

    def spread(self, hidden: Tensor, x: Tensor, scores: Tensor, chosen: Tensor) -> Tensor:
        weights = weights_of(scores, chosen, self.experts.normed)
        gate_up, down = self.expert_gate_up.by_expert, self.expert_down.by_expert
        return through_experts(x, weights, chosen, gate_up, down, residual_TC=hidden)


def _qk_norm(shape: Shape, heads: int) -> nn.Module:
    if not (shape.qk_norm or shape.wide_qk_norm):
        return nn.Identity()
    return nn.RMSNorm(shape.head_dim * (heads if shape.wide_qk_norm else 1), eps=shape.norm_eps)


def _again(forward: Callable[..., Tensor], offload: bool, *given: Any) -> Tensor:
    """Computed now, and in the backward pass again, from what is given to it: that may wait aside."""
    with waiting_aside(given[0]) if offload and torch.is_grad_enabled() else nullcontext():
        computed: Tensor = checkpoint(forward, *given, use_reentrant=False)
        return computed


def normed(x: Tensor, norm: nn.Module) -> Tensor:
    """In float32 inside, in the type of the norm's weight outside."""
    if not isinstance(norm, nn.RMSNorm):
        return x
    weight = norm.weight
    precise = torch.promote_types(weight.dtype, torch.float32)
    return F.rms_norm(x.to(precise), weight.shape, weight.to(precise), norm.eps).to(weight.dtype)


def rotate(x: Tensor, rotary: Rotary) -> Tensor:
    cos, sin = rotary
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


def random_decoder(shape: Shape, device: str, dtype: torch.dtype) -> OwnDecoder:
    """A decoder of any size with random weights, made where it will run: for benchmarks. By as many threads as there
    are cores: a billion numbers take one of them ten seconds."""
    with torch.device("meta"):
        decoder = OwnDecoder(shape).to(dtype)
    decoder.to_empty(device=device)
    if shape.tied:
        decoder.head.weight = decoder.embed.weight
    decoder.inv_freq = inverse_frequencies(shape).to(device)

    def fill(seed: int, parameter: Tensor) -> None:
        generator = torch.Generator(parameter.device).manual_seed(seed)
        with torch.no_grad():
            parameter.normal_(std=0.02, generator=generator) if parameter.dim() > 1 else parameter.fill_(1.0)

    with ThreadPoolExecutor() as threads:
        for filled in [threads.submit(fill, seed, tensor) for seed, tensor in enumerate(decoder.parameters())]:
            filled.result()
    return decoder


def initialise(decoder: OwnDecoder, seed: int, std: float = 0.02) -> None:
    """Random weights for a model that starts from nothing: normal, residual outputs scaled down by depth."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif "norm" in name:
                parameter.fill_(1.0)
            else:
                deep = name.endswith(("out.weight", "down.weight"))
                scale = std / math.sqrt(2 * decoder.shape.layers) if deep else std
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
