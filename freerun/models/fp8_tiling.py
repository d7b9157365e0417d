"""How to cut up a product of FP8 codes on a GPU: the fastest of those that were tried on an H200, by shape."""

from typing import NamedTuple


class Tiling(NamedTuple):
    rows: int
    outs: int
    ins: int
    """Of one program, at a time."""
    warps: int
    stages: int
    split: int = 1
    """Parts that the inputs are cut into, where whoever reads the outputs adds them up."""
    swap: bool = False
    """Whether the weight comes first in the tensor cores."""


def tiling(rows: int, outs: int, ins: int, split: int | None = None) -> Tiling:
    """`split`: into so many parts, if not the fastest number."""
    if rows <= 16:
        return Tiling(16, 64, 128, 4, 5, split or 1, True)
    return Tiling(64, 64, 128, 4, 5, split or 1)
