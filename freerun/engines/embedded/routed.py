"""Which experts the tokens went through, kept on the host beside the cache, for requests that want to know.

What a prompt went through is kept by block, as its keys and values are: whoever finds them in the cache finds this,
too. What an answer's tokens went through stays with the answer, as it was when each next token was sampled: a cache
that new weights fill again does not change that.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from freerun.engines.embedded.blocks import Blocks
from freerun.engines.embedded.sequence import Chunk, Sequence
from freerun.models.routes import RouteLayout, Routes


class Routed(NamedTuple):
    """Which experts the tokens of one step went through."""

    read: list[tuple[Chunk, Routes]]
    """Stretches that were read without sampling from them."""
    sampled: list[Routes]
    """For each sequence that samples: a row for each token that it sampled, of the one before it."""


NOTHING = Routed([], [])
Waited = Callable[[], Routed]
"""To be asked when the step's tokens are there."""


class RoutedTokens:
    def __init__(self, blocks: Blocks, layout: RouteLayout) -> None:
        self._size, self._layout = blocks.block_tokens, layout
        # complements, so that memory which nobody has touched yet, and which takes no room, says that nothing is known
        self._unlike = np.zeros((blocks.count, blocks.block_tokens, layout.width), np.uint8)

    def landed(self, read: Iterable[tuple[Chunk, Routes]]) -> None:
        for chunk, routes in read:
            self._write(chunk.table, chunk.start, routes)

    def stops(self, sequence: Sequence) -> None:
        """It gives its blocks back, and what is in them may be found by others: from the last, partial block of its
        prompt on they are its own."""
        prefix = sequence.request.prefix
        begin = prefix - prefix % self._size
        if sequence.routes and sequence.table:
            rows = np.concatenate([self._read(sequence.request.blocks, begin, prefix), *sequence.routes])
            self._write(sequence.table, begin, rows[: len(sequence.table) * self._size - begin])

    def of(self, sequence: Sequence) -> Routes:
        """All of its tokens but the last, the prompt's included."""
        prompt = self._read(sequence.request.blocks, 0, sequence.request.prefix)
        return np.concatenate([prompt, *sequence.routes])

    def _read(self, table: list[int], start: int, end: int) -> Routes:
        """What is not in blocks any more is not known."""
        here = min(end, len(table) * self._size)
        at = np.arange(start, max(here, start))
        found = ~self._unlike[np.asarray(table, np.int64)[at // self._size], at % self._size]
        return np.concatenate([found, self._layout.unknown(end - start - len(at))])

    def _write(self, table: list[int], start: int, routes: Routes) -> None:
        at = np.arange(start, start + len(routes))
        self._unlike[np.asarray(table, np.int64)[at // self._size], at % self._size] = ~routes
