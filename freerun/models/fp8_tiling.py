"""How products of FP8 codes are cut up on a GPU: as was the fastest there, when the model was loaded.

Which is depends on the rows, the matrix and the GPU, so the few that have a chance are timed.
"""

from collections.abc import Callable
from typing import NamedTuple


class Tiling(NamedTuple):
    rows: int
    outs: int
    ins: int
    """Rows, outputs and inputs that one program takes at a time."""
    warps: int
    stages: int
    split: int = 1
    """Parts that the inputs are cut into, where whoever reads the outputs adds them up."""
    swap: bool = False
    """Whether the weight comes first in the tensor cores."""


_CANDIDATES = {
    16: [
        Tiling(16, 64, 128, 4, 5, 1, True),
        Tiling(16, 64, 256, 4, 4, 1, True),
        Tiling(16, 16, 256, 4, 4),
        Tiling(16, 32, 256, 4, 4),
        Tiling(16, 64, 256, 4, 4, 4, True),
        Tiling(16, 64, 128, 4, 5, 8, True),
    ],
    64: [
        Tiling(64, 64, 128, 4, 5),
        Tiling(64, 32, 128, 4, 5),
        Tiling(64, 128, 128, 4, 4, 1, True),
        Tiling(64, 64, 128, 4, 5, 4),
        Tiling(64, 64, 128, 4, 5, 8),
    ],
    256: [
        Tiling(64, 64, 128, 4, 5),
        Tiling(64, 64, 256, 4, 3),
        Tiling(64, 128, 128, 4, 4),
        Tiling(128, 128, 128, 8, 3),
        Tiling(128, 128, 128, 8, 4),
        Tiling(128, 256, 128, 8, 3),
        Tiling(64, 64, 128, 4, 5, 2),
        Tiling(64, 64, 128, 4, 5, 4),
        Tiling(128, 128, 128, 8, 4, 4),
    ],
    2048: [Tiling(128, 128, 128, 8, 4), Tiling(128, 256, 128, 8, 3)],
}
"""Up to so many rows, and beyond the last; the first is taken where nothing was timed."""
_PART_US = 0.4
"""What it costs to add up a part more, as measured on an H200."""


class Product(NamedTuple):
    """Products that are cut up alike."""

    rows: int
    """The most rows of such a product; for the last kind, any number beyond."""
    outs: int
    ins: int

    @classmethod
    def of(cls, rows: int, outs: int, ins: int) -> "Product":
        return cls(next((most for most in _CANDIDATES if rows <= most), max(_CANDIDATES)), outs, ins)


class Tilings:
    """Those of one model on one GPU."""

    def __init__(self) -> None:
        self._whole: dict[Product, Tiling] = {}
        self._in_parts: dict[Product, Tiling] = {}

    def whole(self, rows: int, outs: int, ins: int) -> Tiling:
        """The tiling of a product that is computed whole."""
        return self._whole.get(kind := Product.of(rows, outs, ins), _CANDIDATES[kind.rows][0])

    def in_parts(self, rows: int, outs: int, ins: int) -> Tiling:
        """The tiling of a product that may be computed in parts."""
        return self._in_parts.get(kind := Product.of(rows, outs, ins), _CANDIDATES[kind.rows][0])

    def choose(self, kind: Product, took_us: Callable[[Tiling], float], may_split: bool) -> None:
        found = {each: took_us(each) for each in _CANDIDATES[kind.rows] if may_split or each.split == 1}
        self._whole[kind] = min((each for each in found if each.split == 1), key=found.__getitem__)
        self._in_parts[kind] = min(found, key=lambda each: found[each] + _PART_US * (each.split - 1))


def kinds(outs: int, ins: int) -> list[Product]:
    """All that a layer of that shape can need."""
    return [Product(rows, outs, ins) for rows in _CANDIDATES]
