"""The paged key/value cache, and attention over it in plain torch: the path for the CPU, and the reference for kernels.

Shapes: T new tokens, N rows of one bucket, C most new tokens of a row, L longest context, H query heads, K key/value
heads, G = H / K, D head dimension, B tokens in a block.
"""

from collections import defaultdict

import torch
from torch import Tensor

from freerun.engines.embedded.sequence import Chunk
from freerun.models.attention import read_masked, seen
from freerun.models.decoder import USUAL, Reading


class Cache:
    """A layer's part is there once something was read: only then is it known how many keys and values a token has in
    it, and how wide they are."""

    def __init__(self, blocks: int, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._blocks = blocks
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def layer(self, layer: int, k_TKD: Tensor, v_TKD: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, each as blocks × their tokens × heads × dimension."""
        if layer not in self._layers:
            size = self._blocks, self.block_tokens
            self._layers[layer] = k_TKD.new_zeros(*size, *k_TKD.shape[1:]), v_TKD.new_zeros(*size, *v_TKD.shape[1:])
        return self._layers[layer]

    def copy(self, copies: list[tuple[int, int]]) -> None:
        """Whole blocks, in every layer."""
        if copies:
            sources, targets = torch.tensor(copies).T
            for kept in (kept for layer in self._layers.values() for kept in layer):
                kept[targets] = kept[sources]


class PagedAttention:
    """One step's attention: each chunk writes its keys and values to its blocks and reads its whole context."""

    def __init__(self, cache: Cache, chunks: list[Chunk], device: torch.device) -> None:
        self._cache = cache
        size = cache.block_tokens
        places = ((chunk.table, position) for chunk in chunks for position in range(chunk.start, chunk.end))
        self._slots_T = torch.tensor([table[p // size] * size + p % size for table, p in places], device=device)
        self._buckets = _buckets(chunks, size)
        self._back_T = torch.cat([bucket.rows for bucket in self._buckets]).argsort().to(device)
        for bucket in self._buckets:
            bucket.to(device)

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, reading: Reading = USUAL) -> Tensor:
        keys, values = self._cache.layer(layer, k_TKD, v_TKD)
        keys.flatten(0, 1)[self._slots_T] = k_TKD
        values.flatten(0, 1)[self._slots_T] = v_TKD
        return torch.cat([bucket.read(q_THD, keys, values, reading) for bucket in self._buckets])[self._back_T]


class _Bucket:
    """Rows with about as many new tokens and about as long a context, read together."""

    def __init__(self, chunks: list[tuple[int, Chunk]], size: int) -> None:
        most = max(len(chunk.tokens) for _, chunk in chunks)
        blocks = max(-(-chunk.end // size) for _, chunk in chunks)
        count_N1 = torch.tensor([[len(chunk.tokens)] for _, chunk in chunks])
        start_N1 = torch.tensor([[chunk.start] for _, chunk in chunks])
        column_C = torch.arange(most)
        gather_NC = torch.tensor([[first] for first, _ in chunks]) + torch.minimum(column_C, count_N1 - 1)
        self.gather_NC = gather_NC
        self.kept = (column_C < count_N1).flatten().nonzero().squeeze(1)
        self.rows = gather_NC.flatten()[self.kept]
        self.tables = torch.tensor([(chunk.table + [0] * blocks)[:blocks] for _, chunk in chunks])
        self.places_NC1 = (start_N1 + torch.minimum(column_C, count_N1 - 1))[:, :, None]
        self.column_L = torch.arange(blocks * size)
        self._masks: dict[int | None, Tensor] = {}

    def to(self, device: torch.device) -> None:
        if device.type != "cpu":
            for name in ("gather_NC", "kept", "tables", "places_NC1", "column_L"):
                setattr(self, name, getattr(self, name).to(device))

    def _mask(self, window: int | None) -> Tensor:
        if window not in self._masks:
            self._masks[window] = seen(self.places_NC1, self.column_L, window)
        return self._masks[window]

    def read(self, q_THD: Tensor, keys: Tensor, values: Tensor, reading: Reading) -> Tensor:
        """Query heads that share a key/value head are folded into the query dimension: on a CPU that is several times
        as fast as repeating the keys."""
        kv_heads, head_dim = keys.shape[-2:]
        rows, new = self.gather_NC.shape
        group = q_THD.shape[1] // kv_heads
        q_NCKGD = q_THD[self.gather_NC].view(rows, new, kv_heads, group, head_dim)
        q = q_NCKGD.permute(0, 2, 3, 1, 4).reshape(rows, kv_heads, group * new, head_dim)
        k = keys[self.tables].flatten(1, 2).transpose(1, 2)
        v = values[self.tables].flatten(1, 2).transpose(1, 2)
        mask = self._mask(reading.window)[:, None]
        if reading.sinks is not None:
            reading = reading._replace(sinks=reading.sinks.view(kv_heads, group).repeat_interleave(new, 1)[..., None])
        read = read_masked(q, k, v, mask.repeat(1, 1, group, 1) if group > 1 else mask, reading)
        read_NKGCD = read.view(rows, kv_heads, group, new, -1)
        return read_NKGCD.permute(0, 3, 1, 2, 4).reshape(rows * new, kv_heads * group, -1)[self.kept]


def _buckets(chunks: list[Chunk], size: int) -> list[_Bucket]:
    """Rows whose counts and contexts are within a factor of two share a bucket, so padding stays under half."""
    alike: dict[tuple[int, int], list[tuple[int, Chunk]]] = defaultdict(list)
    first = 0
    for chunk in chunks:
        key = len(chunk.tokens).bit_length(), (chunk.end // (4 * size)).bit_length()
        alike[key].append((first, chunk))
        first += len(chunk.tokens)
    return [_Bucket(rows, size) for rows in alike.values()]
