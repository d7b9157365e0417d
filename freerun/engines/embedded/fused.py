"""The decoder's forward pass with fused kernels, on the same weights: what the engine runs on a GPU.

`models/decoder.py` is what it must equal, to rounding; a test holds it to that.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from triton import next_power_of_2

from freerun.engines.embedded import kernels
from freerun.models.decoder import Decoder, Layer
from freerun.models.shape import Shape


class DeviceCache:
    """Keys and values in device memory, head-major within a block, so that a block of one head is contiguous."""

    def __init__(self, shape: Shape, blocks: int, block_tokens: int, dtype: torch.dtype) -> None:
        size = (shape.layers, blocks, shape.kv_heads, block_tokens, shape.head_dim)
        self.block_tokens = block_tokens
        self.keys = torch.zeros(size, dtype=dtype, device="cuda")
        self.values = torch.zeros(size, dtype=dtype, device="cuda")

    def copy(self, copies: list[tuple[int, int]]) -> None:
        """Whole blocks, in every layer."""
        if copies:
            sources, targets = torch.tensor(copies, device="cuda").T
            self.keys[:, targets] = self.keys[:, sources]
            self.values[:, targets] = self.values[:, sources]

    @property
    def strides(self) -> tuple[int, int, int]:
        """Of a block, a head, a token."""
        return self.keys.stride(1), self.keys.stride(2), self.keys.stride(3)


class DeviceAttention(Protocol):
    def __call__(self, layer: int, q: Tensor, /) -> Tensor: ...


class FusedDecoder:
    def __init__(self, decoder: Decoder, cache: DeviceCache) -> None:
        self._decoder = decoder
        self._cache = cache
        self._inv_freq = decoder.inv_freq.float().cuda()

    def forward(
        self, tokens_T: Tensor, positions_T: Tensor, rows_T: Tensor, tables: Tensor, attend: DeviceAttention
    ) -> Tensor:
        """Hidden states, normed. Token t belongs to row rows_T[t] of `tables`. Keys and values go to the cache."""
        # The residual stream stays in float32: rounding it at every layer is most of what bf16 costs.
        residual = F.embedding(tokens_T, self._decoder.embed.weight).float()
        delta: Tensor | None = None
        for layer in self._decoder.layers:
            assert isinstance(layer, Layer)
            x = add_norm(residual, delta, layer.attention_norm)
            q = self._rotate_write(layer, layer.qkv(x), positions_T, rows_T, tables)
            delta = layer.out(attend(layer.index, q).flatten(1))
            x = add_norm(residual, delta, layer.mlp_norm)
            delta = layer.down(silu_mul(layer.gate_up(x)))
        return add_norm(residual, delta, self._decoder.norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """In float32 out of the matrix product: rounding them to bf16 would cost the log-probabilities two digits."""
        weight = self._decoder.head.weight
        if hidden.dtype == torch.float32:
            return hidden @ weight.T
        return torch.mm(hidden, weight.T, out_dtype=torch.float32)

    def _rotate_write(self, layer: Layer, qkv: Tensor, positions_T: Tensor, rows_T: Tensor, tables: Tensor) -> Tensor:
        shape = self._decoder.shape
        q = torch.empty(len(qkv), shape.heads, shape.head_dim, dtype=qkv.dtype, device=qkv.device)
        norm = shape.qk_norm
        kernels.rotate_write_kernel[(len(qkv),)](
            qkv, q, self._cache.keys[layer.index], self._cache.values[layer.index],
            layer.q_norm.weight if norm else qkv, layer.k_norm.weight if norm else qkv,
            self._inv_freq, positions_T, rows_T, tables,
            shape.norm_eps, tables.stride(0), *self._cache.strides,
            HEADS=shape.heads, KV_HEADS=shape.kv_heads, D=shape.head_dim, BLOCK=self._cache.block_tokens, NORM=norm,
            ALL=next_power_of_2(shape.heads + 2 * shape.kv_heads), num_warps=4,
        )  # fmt: skip
        return q


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
    """One new token a row. The context is cut into stretches, as many as the longest row needs."""

    def __init__(self, cache: DeviceCache, kv_heads: int, positions_R: Tensor, tables: Tensor, longest: int) -> None:
        self._cache, self._kv_heads = cache, kv_heads
        self._positions, self._tables = positions_R, tables
        self._split = split_tokens(len(positions_R) * kv_heads)
        self._splits = -(-longest // self._split)

    def __call__(self, layer: int, q_RHD: Tensor) -> Tensor:
        rows, heads, width = q_RHD.shape
        splits, out = self._splits, torch.empty_like(q_RHD)
        partial = best = total = out
        if splits > 1:
            partial = torch.empty(rows * heads * splits, width, dtype=torch.float32, device=q_RHD.device)
            best = torch.empty(rows * heads * splits, dtype=torch.float32, device=q_RHD.device)
            total = torch.empty_like(best)
        group = heads // self._kv_heads
        tile, stages = (32, 2) if rows * self._kv_heads >= 1024 else (64, 3)  # the fastest of 72 settings on an H200
        kernels.decode_kernel[(rows, self._kv_heads, splits)](
            q_RHD, self._cache.keys[layer], self._cache.values[layer], self._positions, self._tables,
            out, partial, best, total, width**-0.5, self._tables.stride(0), *self._cache.strides,
            HEADS=heads, KV_HEADS=self._kv_heads, D=width, BLOCK=self._cache.block_tokens, TILE=tile,
            SPLIT=self._split, SPLITS=splits, M=max(16, next_power_of_2(group)), PRECISION=precision(q_RHD),
            num_warps=2, num_stages=stages,
        )  # fmt: skip
        if splits > 1:
            kernels.combine_kernel[(rows, heads)](
                partial, best, total, self._positions, out,
                HEADS=heads, D=width, SPLIT=self._split, SPLITS=splits, S=max(2, next_power_of_2(splits)), num_warps=2,
            )  # fmt: skip
        return out


def split_tokens(programs: int) -> int:
    """Tokens of context for one program: few enough that the GPU is full, and that a long row does not come last."""
    return 1024 if programs >= 256 else 512 if programs >= 64 else 256


class PrefillAttention:
    """Many new tokens a row, each looking at its row's cache up to itself."""

    M, TILE = 128, 64

    def __init__(self, cache: DeviceCache, shape: Shape, starts: list[int], counts: list[int], tables: Tensor) -> None:
        self._cache, self._kv_heads, self._tables = cache, shape.kv_heads, tables
        queries = self.M // (shape.heads // shape.kv_heads)
        tiles = [(row, first) for row, count in enumerate(counts) for first in range(0, count, queries)]
        firsts = _before(counts)

        def device(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int32, device="cuda")

        self._tile_rows, self._tile_starts = device([row for row, _ in tiles]), device([first for _, first in tiles])
        self._first, self._start, self._count = device(firsts), device(starts), device(counts)

    def __call__(self, layer: int, q_THD: Tensor) -> Tensor:
        _, heads, width = q_THD.shape
        out = torch.empty_like(q_THD)
        kernels.prefill_kernel[(len(self._tile_rows), self._kv_heads)](
            q_THD, self._cache.keys[layer], self._cache.values[layer], self._tables,
            self._tile_rows, self._tile_starts, self._first, self._start, self._count, out,
            width**-0.5, self._tables.stride(0), *self._cache.strides,
            HEADS=heads, KV_HEADS=self._kv_heads, D=width, BLOCK=self._cache.block_tokens, TILE=self.TILE, M=self.M,
            PRECISION=precision(q_THD), num_warps=8, num_stages=2,
        )  # fmt: skip
        return out


def precision(x: Tensor) -> str:
    """Float32 is multiplied as float32, not in the matrix units' shorter form."""
    return "ieee" if x.dtype == torch.float32 else "tf32"


def _before(counts: list[int]) -> list[int]:
    """How many come before each."""
    sums = [0]
    for count in counts:
        sums.append(sums[-1] + count)
    return sums[:-1]
