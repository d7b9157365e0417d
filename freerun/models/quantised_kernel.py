"""Codes and scales to the numbers that they stand for, in one pass: see `quantised.py`. Needs Triton."""

from typing import Any

import triton
import triton.language as tl


@triton.jit
def widen_kernel(
    codes: Any,
    scale: Any,
    levels: Any,
    out: Any,
    count: Any,
    group: Any,
    PACKED: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Rows are whole groups, so groups can be counted through all of them."""
    at = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    inside = at < count
    if PACKED:
        both = tl.load(codes + at // 2, mask=inside, other=0).to(tl.int32)
        numbers = tl.load(levels + ((both >> ((at % 2) * 4).to(tl.int32)) & 15), mask=inside, other=0.0)
    else:
        numbers = tl.load(codes + at, mask=inside, other=0).to(tl.float32)
    wide = numbers * tl.load(scale + at // group, mask=inside, other=0.0)
    tl.store(out + at, wide.to(out.dtype.element_ty), mask=inside)
