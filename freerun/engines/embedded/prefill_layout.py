"""What is to be read in a step, as the device needs it: prompts, and answers being rebuilt, many tokens a row.

It is one stretch of integers, which goes to the device in one copy. There may be room for more than is there: so a CUDA
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

PAIRS = 128
"""Of a query and one of the heads that share a key: what one program of the kernel takes, a tile."""
_TOKENS_A_ROW = 8
"""That a graph has room for."""

_ALIGNED = 4
"""Integers."""

Array = TypeVar("Array", np.ndarray, Tensor)


@dataclass(frozen=True)
class Room:
    """For so many tokens, in so many rows of so many blocks each; a tile takes so many tokens of a row."""

    tokens: int
    rows: int
    blocks: int
    tile: int

    @classmethod
    def of_graph(cls, tokens: int, blocks: int, tile: int) -> "Room":
        return cls(tokens, tokens // _TOKENS_A_ROW, blocks, tile)

    @classmethod
    def just_for(cls, chunks: Sequence[Chunk], tile: int) -> "Room":
        blocks = max(len(chunk.table) for chunk in chunks)
        return cls(_tokens(chunks), len(chunks), blocks, tile)

    def fits(self, chunks: Sequence[Chunk]) -> bool:
        return len(chunks) <= self.rows and _tokens(chunks) <= self.tokens

    @property
    def sizes(self) -> list[int]:
        """Of the parts. There are tiles for whatever fits: the last one of each row may be nearly empty. All are
        aligned alike, or kernels would be compiled for each alignment."""
        rows, tiles = self.rows + 1, self.tokens // self.tile + self.rows
        sizes = [self.tokens] * 3 + [tiles] * 2 + [rows] * 3 + [rows * self.blocks]
        return [-(-size // _ALIGNED) * _ALIGNED for size in sizes]


class Parts(NamedTuple, Generic[Array]):
    tokens: Array
    rows: Array
    """Of each token; and its position there."""
    positions: Array
    tile_rows: Array
    """Of each tile; and which of the row's new tokens it begins with."""
    tile_starts: Array
    row_first: Array
    """Of each row, where its new tokens begin among all; their first position; and how many there are."""
    row_start: Array
    row_count: Array
    tables: Array
    """Each row's blocks."""


def laid_out(chunks: Sequence[Chunk], room: Room, idle_block: int) -> np.ndarray:
    """All parts, one behind the other."""
    memory = np.zeros(sum(room.sizes), dtype=np.int32)
    parts = Parts(*(memory[end - size : end] for end, size in zip(np.cumsum(room.sizes), room.sizes, strict=True)))
    every = np.arange(len(chunks))
    counts = np.array([len(chunk.tokens) for chunk in chunks], dtype=np.int64)
    starts = np.array([chunk.start for chunk in chunks], dtype=np.int64)
    firsts = np.cumsum(counts) - counts
    rows = np.repeat(every, counts)
    parts.tokens[: len(rows)] = [token for chunk in chunks for token in chunk.tokens]
    parts.positions[: len(rows)] = np.arange(len(rows)) - (firsts - starts)[rows]
    tiles = -(-counts // room.tile)
    tile_rows, first_tiles = np.repeat(every, tiles), np.cumsum(tiles) - tiles
    parts.tile_starts[: len(tile_rows)] = (np.arange(len(tile_rows)) - first_tiles[tile_rows]) * room.tile
    for part, values in ((parts.rows, rows), (parts.tile_rows, tile_rows)):
        part[: len(values)], part[len(values) :] = values, room.rows
    for part, values in ((parts.row_first, firsts), (parts.row_start, starts), (parts.row_count, counts)):
        part[: len(values)] = values
    parts.tables[:] = idle_block
    for row, chunk in enumerate(chunks):
        begin = row * room.blocks
        parts.tables[begin : begin + len(chunk.table)] = chunk.table
    return memory


class Reading:
    """On the device."""

    def __init__(self, room: Room, idle_block: int, chunks: Sequence[Chunk] = ()) -> None:
        self.room, self._idle_block = room, idle_block
        self._memory = torch.empty(sum(room.sizes), dtype=torch.int32, device="cuda")
        self.parts: Parts[Tensor] = Parts(*torch.split_with_sizes(self._memory, room.sizes))
        self.load(chunks)

    def load(self, chunks: Sequence[Chunk]) -> None:
        """Through pinned memory: nothing waits for it."""
        memory = torch.from_numpy(laid_out(chunks, self.room, self._idle_block)).pin_memory()
        self._memory.copy_(memory, non_blocking=True)


def _tokens(chunks: Sequence[Chunk]) -> int:
    return sum(len(chunk.tokens) for chunk in chunks)
