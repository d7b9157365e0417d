"""Our own code for Llama, SmolLM2, Qwen2 and Qwen3: fast, and the same in engine and trainer.

Query, key and value projections are one matrix, and so are gate and up. `models/checkpoint.py` maps that to Hugging
Face's names and back. Whatever type the weights have, the residual stream, norms and rotations are in float32: rounding
those is most of what bf16 would cost.

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
from freerun.models.decoder import Attend, Decoder, Recompute
from freerun.models.shape import Shape

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
        self.layers = nn.ModuleList(Layer(shape, index) for index in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)
        self.head = nn.Linear(shape.hidden, shape.vocab_size, bias=False)
        if shape.tied:
            self.head.weight = self.embed.weight
        self.register_buffer("inv_freq", inverse_frequencies(shape), persistent=False)

    def forward(self, tokens_T: Tensor, positions_T: Tensor, attend: Attend) -> Tensor:
        embedded = self.embed(tokens_T)
        hidden = embedded.to(torch.promote_types(embedded.dtype, torch.float32))
        rotary = self._rotary(positions_T)
        for layer in self.layers:
            hidden = layer(hidden, rotary, attend)
        return normed(hidden, self.norm)

    @property
    def adaptable(self) -> Iterator[str]:
        return (f"layers.{layer.index}.{name}" for layer in self.layers for name in ("qkv", "out", "gate_up", "down"))

    def arrange(self, compiled: bool, recompute: Recompute) -> None:
        """Compile the two halves of a layer around its attention, once for all layers and lengths; and do not keep what
        is inside them for the backward pass. The attention itself is not computed twice, unless "all" is to be: then a
        layer leaves only what came into it, with "offload" in the machine's memory."""
        halves: list[Callable[..., Any]] = [Layer.project, Layer.feed]
        if compiled:
            halves = [torch.compile(half, dynamic=True) for half in halves]
        if recompute is True:
            halves = [partial(checkpoint, half, use_reentrant=False) for half in halves]
        if compiled or recompute:
            for layer in self.layers:
                layer.project, layer.feed = (partial(half, layer) for half in halves)  # type: ignore[assignment]
        for layer in self.layers if recompute in ("all", "offload") else ():
            layer.forward = partial(_again, layer.forward, recompute == "offload")

    def _rotary(self, positions_T: Tensor) -> Rotary:
        angles = positions_T[:, None].float() * self.inv_freq
        angles = torch.cat((angles, angles), dim=-1)[:, None, :]
        return angles.cos(), angles.sin()


class Layer(nn.Module):
    def __init__(self, shape: Shape, index: int) -> None:
        super().__init__()
        self.index = index
        self.heads = [shape.heads, shape.kv_heads, shape.kv_heads]
        self.head_dim = shape.head_dim
        self.attention_norm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)
        self.qkv = nn.Linear(shape.hidden, sum(self.heads) * shape.head_dim, bias=shape.qkv_bias)
        self.out = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=shape.out_bias)
        self.q_norm = nn.RMSNorm(shape.head_dim, eps=shape.norm_eps) if shape.qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(shape.head_dim, eps=shape.norm_eps) if shape.qk_norm else nn.Identity()
        self.mlp_norm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)
        self.gate_up = nn.Linear(shape.hidden, 2 * shape.ffn, bias=shape.mlp_bias)
        self.down = nn.Linear(shape.ffn, shape.hidden, bias=shape.mlp_bias)

    def forward(self, hidden: Tensor, rotary: Rotary, attend: Attend) -> Tensor:
        return self.feed(hidden, attend(self.index, *self.project(hidden, rotary)))

    def project(self, hidden: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values."""
        qkv = self.qkv(normed(hidden, self.attention_norm)).unflatten(-1, (-1, self.head_dim))
        q, k, v = qkv.split(self.heads, dim=1)
        return rotate(normed(q, self.q_norm), rotary), rotate(normed(k, self.k_norm), rotary), v

    def feed(self, hidden: Tensor, read_THD: Tensor) -> Tensor:
        """What comes after the attention."""
        hidden = hidden + self.out(read_THD.flatten(1))
        gate, up = self.gate_up(normed(hidden, self.mlp_norm)).chunk(2, dim=-1)
        fed: Tensor = self.down(F.silu(gate) * up)
        return hidden + fed


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


def inverse_frequencies(shape: Shape) -> Tensor:
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32, device="cpu") / shape.head_dim
    frequencies: Tensor = 1.0 / shape.rope_theta**exponents
    scaling = shape.rope_scaling
    if not scaling:
        return frequencies
    if scaling.get("rope_type", scaling.get("type")) == "linear":
        return frequencies / float(scaling["factor"])
    return _llama3(frequencies, **{key: float(scaling[key]) for key in _LLAMA3})


_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def _llama3(
    frequencies: Tensor,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_max_position_embeddings: float,
) -> Tensor:
    """Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, those between blended."""
    turns = original_max_position_embeddings * frequencies / (2 * math.pi)
    blend = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0)
    return blend * frequencies + (1 - blend) * frequencies / factor


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
