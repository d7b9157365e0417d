"""The paged key/value cache, and attention over it in plain torch: the path for the CPU, and the reference for kernels.

Shapes: T new tokens, N rows of one bucket, C most new tokens of a row, L longest context, H query heads, K key/value
heads, G = H / K, D head dimension, B tokens in a block.
"""

from collections import defaultdict

import torch
from torch import Tensor
from torch.nn import functional as F

from freerun.engines.embedded.sequence import Chunk
from freerun.models.shape import Shape


class Cache:
    def __init__(self, shape: Shape, blocks: int, block_tokens: int, dtype: torch.dtype) -> None:
        self.block_tokens = block_tokens
        size = (shape.layers, blocks, block_tokens, shape.kv_heads, shape.head_dim)
        self.keys = torch.zeros(size, dtype=dtype)
        self.values = torch.zeros(size, dtype=dtype)

    def copy(self, copies: list[tuple[int, int]]) -> None:
        """Whole blocks, in every layer."""
        if copies:
            sources, targets = torch.tensor(copies).T
            self.keys[:, targets] = self.keys[:, sources]
            self.values[:, targets] = self.values[:, sources]


class PagedAttention:
    """One step's attention: each chunk writes its keys and values to its blocks and reads its whole context."""

    def __init__(self, cache: Cache, chunks: list[Chunk]) -> None:
        self._cache = cache
        size = cache.block_tokens
        places = ((chunk.table, position) for chunk in chunks for position in range(chunk.start, chunk.end))
        self._slots_T = torch.tensor([table[p // size] * size + p % size for table, p in places])
        self._buckets = _buckets(chunks, size)
        self._back_T = torch.cat([bucket.rows for bucket in self._buckets]).argsort()

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        keys.flatten(0, 1)[self._slots_T] = k_TKD
        values.flatten(0, 1)[self._slots_T] = v_TKD
        return torch.cat([bucket.read(q_THD, keys, values) for bucket in self._buckets])[self._back_T]


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
        seen_NC = start_N1 + torch.minimum(column_C, count_N1 - 1)
        self.mask_NCL = torch.arange(blocks * size) <= seen_NC[:, :, None]

    def read(self, q_THD: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Query heads that share a key/value head are folded into the query dimension: on a CPU that is several times
        as fast as repeating the keys."""
        kv_heads, head_dim = keys.shape[-2:]
        rows, new = self.gather_NC.shape
        group = q_THD.shape[1] // kv_heads
        q_NCKGD = q_THD[self.gather_NC].view(rows, new, kv_heads, group, head_dim)
        q = q_NCKGD.permute(0, 2, 3, 1, 4).reshape(rows, kv_heads, group * new, head_dim)
        k = keys[self.tables].flatten(1, 2).transpose(1, 2)
        v = values[self.tables].flatten(1, 2).transpose(1, 2)
        mask = self.mask_NCL[:, None].repeat(1, 1, group, 1) if group > 1 else self.mask_NCL[:, None]
        read = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        read_NKGCD = read.view(rows, kv_heads, group, new, head_dim)
        return read_NKGCD.permute(0, 3, 1, 2, 4).reshape(rows * new, -1, head_dim)[self.kept]


def _buckets(chunks: list[Chunk], size: int) -> list[_Bucket]:
    """Rows whose counts and contexts are within a factor of two share a bucket, so padding stays under half."""
    alike: dict[tuple[int, int], list[tuple[int, Chunk]]] = defaultdict(list)
    first = 0
    for chunk in chunks:
        key = len(chunk.tokens).bit_length(), (chunk.end // (4 * size)).bit_length()
        alike[key].append((first, chunk))
        first += len(chunk.tokens)
    return [_Bucket(rows, size) for rows in alike.values()]
