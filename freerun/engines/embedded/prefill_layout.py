"""What a step prefills, as the device needs it: prompts, and answers being rebuilt, many tokens a row.

It is one array of integers, which goes to the device in one copy. There may be room for more than is there: so a CUDA
graph is made once, and reads whatever fits. Tokens beyond those that are there belong to one row more, whose blocks are
all the idle one; tiles beyond belong to it too, and find no token of theirs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from freerun.engines.embedded.sequence import Chunk

TILE_PAIRS = 128
"""A tile is what one program of the kernel takes: so many pairs of a query and one of the heads that share a key."""
_TOKENS_A_ROW = 8
"""How many a graph has room for."""

_ALIGNED = 4
"""How many integers each tensor is aligned to."""

Array = TypeVar("Array", np.ndarray, Tensor)


@dataclass(frozen=True)
class PrefillCapacity:
    """How much fits: so many tokens, in so many rows of so many blocks each; a tile takes so many tokens of a row."""

    tokens: int
    rows: int
    blocks: int
    tile: int

    @classmethod
    def of_graph(cls, tokens: int, blocks: int, tile: int) -> "PrefillCapacity":
        return cls(tokens, tokens // _TOKENS_A_ROW, blocks, tile)

    @classmethod
    def just_for(cls, chunks: Sequence[Chunk], tile: int) -> "PrefillCapacity":
        blocks = max(len(chunk.table) for chunk in chunks)
        return cls(_tokens(chunks), len(chunks), blocks, tile)

    def fits(self, chunks: Sequence[Chunk]) -> bool:
        return len(chunks) <= self.rows and _tokens(chunks) <= self.tokens

    @property
    def sizes(self) -> list[int]:
        """The size of each tensor. There are tiles for whatever fits: the last one of each row may be nearly empty. All
        are aligned alike, or kernels would be compiled for each alignment."""
        rows, tiles = self.rows + 1, self.tokens // self.tile + self.rows
        sizes = [self.tokens] * 3 + [tiles] * 2 + [rows] * 3 + [rows * self.blocks]
        return [-(-size // _ALIGNED) * _ALIGNED for size in sizes]


class PrefillTensors(NamedTuple, Generic[Array]):
    tokens: Array
    rows: Array
    """The row of each token; and, next, its position there."""
    positions: Array
    tile_rows: Array
    """The row of each tile; and, next, which of the row's new tokens it begins with."""
    tile_starts: Array
    row_first: Array
    """Where each row's new tokens begin among all; then their first position; then how many there are."""
    row_start: Array
    row_count: Array
    tables: Array
    """Each row's blocks."""


def lay_out(chunks: Sequence[Chunk], capacity: PrefillCapacity, idle_block: int) -> np.ndarray:
    """All tensors, one behind the other."""
    memory = np.zeros(sum(capacity.sizes), dtype=np.int32)
    tensors = PrefillTensors(
        *(memory[end - size : end] for end, size in zip(np.cumsum(capacity.sizes), capacity.sizes, strict=True))
    )
    every = np.arange(len(chunks))
    counts = np.array([len(chunk.tokens) for chunk in chunks], dtype=np.int64)
    starts = np.array([chunk.start for chunk in chunks], dtype=np.int64)
    firsts = np.cumsum(counts) - counts
    rows = np.repeat(every, counts)
    tensors.tokens[: len(rows)] = [token for chunk in chunks for token in chunk.tokens]
    tensors.positions[: len(rows)] = np.arange(len(rows)) - (firsts - starts)[rows]
    tiles = -(-counts // capacity.tile)
    tile_rows, first_tiles = np.repeat(every, tiles), np.cumsum(tiles) - tiles
    tensors.tile_starts[: len(tile_rows)] = (np.arange(len(tile_rows)) - first_tiles[tile_rows]) * capacity.tile
    for part, values in ((tensors.rows, rows), (tensors.tile_rows, tile_rows)):
        part[: len(values)], part[len(values) :] = values, capacity.rows
    for part, values in ((tensors.row_first, firsts), (tensors.row_start, starts), (tensors.row_count, counts)):
        part[: len(values)] = values
    tensors.tables[:] = idle_block
    for row, chunk in enumerate(chunks):
        begin = row * capacity.blocks
        tensors.tables[begin : begin + len(chunk.table)] = chunk.table
    return memory


class PrefillBatch:
    """The layout of a step on the device."""

    def __init__(self, capacity: PrefillCapacity, idle_block: int, chunks: Sequence[Chunk] = ()) -> None:
        self.capacity, self._idle_block = capacity, idle_block
        self._memory = torch.empty(sum(capacity.sizes), dtype=torch.int32, device="cuda")
        self.tensors: PrefillTensors[Tensor] = PrefillTensors(*torch.split_with_sizes(self._memory, capacity.sizes))
        self.load(chunks)

    def load(self, chunks: Sequence[Chunk]) -> None:
        """Through pinned memory: nothing waits for it."""
        memory = torch.from_numpy(lay_out(chunks, self.capacity, self._idle_block)).pin_memory()
        self._memory.copy_(memory, non_blocking=True)


def _tokens(chunks: Sequence[Chunk]) -> int:
    return sum(len(chunk.tokens) for chunk in chunks)
