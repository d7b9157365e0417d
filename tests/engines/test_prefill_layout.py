"""What is read in a step, laid out for the device: whatever fits into a graph's capacity is read right."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from freerun.engines.embedded.prefill_layout import PrefillCapacity, PrefillTensors, lay_out
from freerun.engines.embedded.sequence import Chunk

IDLE = 999
BLOCK = 4
chunk = st.builds(
    lambda start, count: Chunk(
        [7 * start + i for i in range(count)], start, [start + b for b in range(-(-(start + count) // BLOCK))]
    ),
    st.integers(0, 20),
    st.integers(1, 30),
)


def parts_of(memory: np.ndarray, capacity: PrefillCapacity) -> PrefillTensors[np.ndarray]:
    return PrefillTensors(*np.split(memory, np.cumsum(capacity.sizes)[:-1]))


@given(st.lists(chunk, min_size=1, max_size=12), st.integers(1, 9), st.booleans())
def test_every_token_is_read_once_where_it_belongs(chunks: list[Chunk], tile: int, graph: bool) -> None:
    blocks = max(len(chunk.table) for chunk in chunks)
    capacity = PrefillCapacity.of_graph(512, blocks + 3, tile) if graph else PrefillCapacity.just_for(chunks, tile)
    assert capacity.fits(chunks)
    parts = parts_of(lay_out(chunks, capacity, IDLE), capacity)
    tables = parts.tables[: (capacity.rows + 1) * capacity.blocks].reshape(-1, capacity.blocks)
    expected = [
        (token, chunk.start + i, chunk.table[(chunk.start + i) // BLOCK])
        for chunk in chunks
        for i, token in enumerate(chunk.tokens)
    ]
    where = [int(tables[row, at // BLOCK]) for row, at in zip(parts.rows, parts.positions, strict=True)]
    got = list(zip(parts.tokens.tolist(), parts.positions.tolist(), where, strict=True))
    assert got[: len(expected)] == expected
    assert set(where[len(expected) :]) <= {IDLE}, "nobody else's cache is written to"
    seen = [
        int(parts.row_first[row]) + query
        for row, start in zip(parts.tile_rows, parts.tile_starts, strict=True)
        for query in range(start, min(start + tile, parts.row_count[row]))
    ]
    assert sorted(seen) == list(range(len(expected))), "each token is in one tile"
    assert all(parts.row_start[row] == chunk.start for row, chunk in enumerate(chunks))
    assert all(size % 4 == 0 for size in capacity.sizes), "kernels are compiled for aligned ones"


def test_what_does_not_fit() -> None:
    capacity = PrefillCapacity.of_graph(64, 2, 8)
    assert capacity.fits([Chunk([1] * 8, 0, [0, 1])] * 8)
    assert not capacity.fits([Chunk([1] * 4, 0, [0])] * 9), "too many rows"
    assert not capacity.fits([Chunk([1] * 33, 0, [0])] * 2), "too many tokens"
