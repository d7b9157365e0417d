"""The decoder's forward pass with fused kernels, on the same weights: what the engine runs on a GPU.

`models/decoder.py` is what it must equal, to rounding; a test holds it to that.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from triton import next_power_of_2

from freerun.engines.embedded import kernels
from freerun.engines.embedded.experts import RouteNotes, feed
from freerun.engines.embedded.prefill_layout import TILE_PAIRS, PrefillBatch
from freerun.models.own import ExpertLayer, Layer, OwnDecoder
from freerun.models.rope import strength
from freerun.models.shape import Shape

_COPIED_TOGETHER = 64
"""Blocks of the cache."""


def to_device(values: Sequence[Any] | np.ndarray, dtype: torch.dtype = torch.int32) -> Tensor:
    """Through pinned memory: a copy from pageable memory would wait for all that the device is doing."""
    return torch.as_tensor(values, dtype=dtype).pin_memory().to("cuda", non_blocking=True)


class DeviceCache:
    """Keys and values in device memory, head-major within a block, so that a block of one head is contiguous."""

    def __init__(self, shape: Shape, blocks: int, block_tokens: int, dtype: torch.dtype) -> None:
        size = (shape.layers, blocks, shape.kv_heads, block_tokens, shape.head_dim)
        self.shape, self.block_tokens = shape, block_tokens
        self.keys = torch.zeros(size, dtype=dtype, device="cuda")
        self.values = torch.zeros(size, dtype=dtype, device="cuda")

    def copy(self, copies: list[tuple[int, int]]) -> None:
        """Whole blocks, in every layer. Some at a time: what is copied is in memory once more meanwhile."""
        if copies:
            for some in to_device(copies, torch.int64).split(_COPIED_TOGETHER):
                sources, targets = some.T
                self.keys[:, targets] = self.keys[:, sources]
                self.values[:, targets] = self.values[:, sources]

    @property
    def strides(self) -> tuple[int, int, int]:
        """From one block, head or token to the next."""
        return self.keys.stride(1), self.keys.stride(2), self.keys.stride(3)


class DeviceAttention(Protocol):
    def __call__(self, layer: Layer, qkv: Tensor) -> Tensor:
        """From each token's projections to what it reads, a row a token; its key and value go to the cache."""
        ...


class FusedDecoder:
    def __init__(self, decoder: OwnDecoder) -> None:
        self._decoder = decoder

    def forward(self, tokens_T: Tensor, attend: DeviceAttention, notes: RouteNotes | None = None) -> Tensor:
        """Hidden states, normed. In `notes` goes which experts tokens went through."""
        # The residual stream stays in float32: rounding it at every layer is most of what bf16 costs.
        return self.through(F.embedding(tokens_T, self._decoder.embed.weight).float(), attend, notes)

    def through(self, residual: Tensor, attend: DeviceAttention, notes: RouteNotes | None = None) -> Tensor:
        """What comes out of all layers, normed. The residual stream is changed in place."""
        delta: Tensor | None = None
        for layer in self._decoder.layers:
            assert isinstance(layer, Layer)
            x = add_norm(residual, delta, layer.attention_norm)
            delta = layer.out(attend(layer, layer.qkv(x)))
            x = add_norm(residual, delta, layer.mlp_norm)
            delta = fed(layer, x, notes)
        return add_norm(residual, delta, self._decoder.norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """In float32 out of the matrix product: rounding them to bf16 would cost the log-probabilities two digits."""
        weight = self._decoder.head.weight
        if hidden.dtype == torch.float32:
            return hidden @ weight.T
        return torch.mm(hidden, weight.T, out_dtype=torch.float32)


def fed(layer: Layer, x: Tensor, notes: RouteNotes | None) -> Tensor:
    if isinstance(layer, ExpertLayer):
        return feed(layer, x, notes)
    down: Tensor = layer.down(silu_mul(layer.gate_up(x)))
    return down


def add_norm(residual: Tensor, delta: Tensor | None, norm: torch.nn.RMSNorm) -> Tensor:
    """residual += delta, in place, and its norm."""
    out = torch.empty_like(residual, dtype=norm.weight.dtype)
    rows, width = residual.shape
    kernels.add_norm_kernel[(rows,)](
        residual, residual if delta is None else delta, norm.weight, out, norm.eps, width,
        HAS_DELTA=delta is not None, WIDTH=next_power_of_2(width), num_warps=4,
    )  # fmt: skip
    return out


def silu_mul(gate_up: Tensor) -> Tensor:
    rows, width = len(gate_up), gate_up.shape[1] // 2
    out = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    kernels.silu_mul_kernel[(rows, -(-width // 1024))](gate_up, out, width, WIDTH=1024, num_warps=4)
    return out


class DecodeAttention:
    """The new tokens of each row, as many in all: one behind the other from its position on. The context is cut into
    stretches, as many as the longest row needs. `overlap`: whether it may begin while the kernel before it runs."""

    def __init__(
        self,
        cache: DeviceCache,
        rotary: tuple[Tensor, Tensor],
        positions_R: Tensor,
        tables: Tensor,
        longest: int,
        overlap: bool = False,
    ) -> None:
        self._cache, self._positions, self._tables = cache, positions_R, tables
        self._rotary, self._overlap = rotary, overlap
        programs = len(positions_R) * cache.shape.kv_heads
        self._split = split_tokens(programs, cache.shape.head_dim)
        self._splits = -(-longest // self._split)
        self._arrived = torch.zeros(programs, dtype=torch.int32, device=positions_R.device)

    def __call__(self, layer: Layer, qkv: Tensor) -> Tensor:
        shape, rows, tokens, splits = self._cache.shape, len(self._positions), len(qkv), self._splits
        qkv = layer.normed_wide(qkv) if layer.norms_wide else qkv
        heads, kv_heads, width = shape.heads, shape.kv_heads, shape.head_dim
        out = torch.empty(tokens, heads * width, dtype=qkv.dtype, device=qkv.device)
        partial = best = total = out
        if splits > 1:
            partial = torch.empty(tokens * heads * splits, width, dtype=torch.float32, device=qkv.device)
            best = torch.empty(tokens * heads * splits, dtype=torch.float32, device=qkv.device)
            total = torch.empty_like(best)
        kernels.decode_kernel[(rows, kv_heads, splits)](
            qkv, *norm_weights(layer, qkv), *self._rotary,
            self._cache.keys[layer.index], self._cache.values[layer.index], self._positions, self._tables,
            out, partial, best, total, self._arrived,
            shape.norm_eps, width**-0.5, self._tables.stride(0), *self._cache.strides,
            HEADS=heads, KV_HEADS=kv_heads, D=width, BLOCK=self._cache.block_tokens, NORM=shape.qk_norm,
            TOKENS=tokens // rows, SPLIT=self._split, SPLITS=splits,
            M=max(16, next_power_of_2(heads // kv_heads * (tokens // rows))),
            OVERLAP=self._overlap, launch_pdl=self._overlap, PRECISION=precision(qkv), **tiling(rows * kv_heads, width),
        )  # fmt: skip
        return out


def tile_tokens(shape: Shape) -> int:
    """Tokens of a row that one tile of `PrefillAttention` takes."""
    return TILE_PAIRS // (shape.heads // shape.kv_heads)


def rotary(positions_T: Tensor, inv_freq: Tensor, strength: float = 1.0) -> tuple[Tensor, Tensor]:
    """Cosines and sines of each token's angles, once for all layers."""
    angles = positions_T[:, None].float() * inv_freq
    return angles.cos() * strength, angles.sin() * strength


def norm_weights(layer: Layer, instead: Tensor) -> tuple[Tensor, Tensor]:
    """The weights that norm queries and keys, in families that do so."""
    if isinstance(layer.q_norm, torch.nn.RMSNorm) and isinstance(layer.k_norm, torch.nn.RMSNorm):
        return layer.q_norm.weight, layer.k_norm.weight
    return instead, instead


def split_tokens(programs: int, width: int) -> int:
    """Tokens of context for one program, where there are so many for one stretch of it: few enough that the GPU is
    full, and that a long row does not come last. `width`: of a head."""
    if programs < 128:
        return 128 if width < 128 else 256
    return 256 if programs < 256 else 512 if 1024 <= programs < 2048 else 1024


def tiling(programs: int, width: int) -> dict[str, int]:
    """How to cut up the decode kernel, for so many rows times key/value heads: the fastest of 40 ways on an H200."""
    if programs >= 4096:
        return {"TILE": 64, "num_stages": 2, "num_warps": 4}
    if programs >= 1024:
        return {"TILE": 32, "num_stages": 4, "num_warps": 1}
    if programs >= 512:
        return {"TILE": 16, "num_stages": 6, "num_warps": 1}
    if 128 <= programs < 256:
        return {"TILE": 32, "num_stages": 6, "num_warps": 1}
    if programs < 128 <= width:
        return {"TILE": 128, "num_stages": 2, "num_warps": 4}
    return {"TILE": 64, "num_stages": 2, "num_warps": 2}


class PrefillAttention:
    """Many new tokens a row, each looking at its row's cache up to itself."""

    TILE = 64

    def __init__(self, cache: DeviceCache, inv_freq: Tensor, batch: PrefillBatch) -> None:
        self._cache, self._tensors, self._table_stride = cache, batch.tensors, batch.capacity.blocks
        self._rotary = rotary(batch.tensors.positions, inv_freq, strength(cache.shape))

    def __call__(self, layer: Layer, qkv: Tensor) -> Tensor:
        qkv = layer.normed_wide(qkv) if layer.norms_wide else qkv
        shape, keys, values = self._cache.shape, self._cache.keys[layer.index], self._cache.values[layer.index]
        heads, kv_heads, width = shape.heads, shape.kv_heads, shape.head_dim
        layout = self._tensors
        q = torch.empty(len(qkv), heads * width, dtype=qkv.dtype, device=qkv.device)
        kernels.rotate_write_kernel[(len(qkv),)](
            qkv, q, keys, values, *norm_weights(layer, qkv), *self._rotary,
            layout.positions, layout.rows, layout.tables,
            shape.norm_eps, self._table_stride, *self._cache.strides,
            HEADS=heads, KV_HEADS=kv_heads, D=width, BLOCK=self._cache.block_tokens, NORM=shape.qk_norm,
            ALL=next_power_of_2(heads + 2 * kv_heads), num_warps=4,
        )  # fmt: skip
        out = torch.empty_like(q)
        kernels.prefill_kernel[(len(layout.tile_rows), kv_heads)](
            q, keys, values, layout.tables,
            layout.tile_rows, layout.tile_starts, layout.row_first, layout.row_start, layout.row_count, out,
            width**-0.5, self._table_stride, *self._cache.strides,
            HEADS=heads, KV_HEADS=kv_heads, D=width, BLOCK=self._cache.block_tokens, TILE=self.TILE, M=TILE_PAIRS,
            PRECISION=precision(qkv), num_warps=8, num_stages=2,
        )  # fmt: skip
        return out


def precision(x: Tensor) -> str:
    """Float32 is multiplied as float32, not in the matrix units' shorter form."""
    return "ieee" if x.dtype == torch.float32 else "tf32"
