"""Kernels over codes and scales: see `quantised.py`. Needs Triton."""

import triton
import triton.language as tl


@triton.jit
def widen_kernel(codes, scale, levels, out, count, group, PACKED: tl.constexpr, WIDTH: tl.constexpr):
    """The numbers that they stand for, in one pass. Rows are whole groups, so groups are counted through all rows."""
    at = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    inside = at < count
    numbers = _numbers(codes, levels, at, inside, PACKED)
    wide = numbers * tl.load(scale + at // group, mask=inside, other=0.0)
    tl.store(out + at, wide.to(out.dtype.element_ty), mask=inside)


@triton.jit
def few_rows_kernel(
    x, codes, scale, levels, out, rows, outs,
    WIDTH: tl.constexpr, GROUP: tl.constexpr, PACKED: tl.constexpr, R: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """x · wᵀ for a few rows of x, w as codes: what a step of decoding reads is then codes, and not the matrix."""
    r, n = tl.arange(0, R), tl.program_id(0) * N + tl.arange(0, N)
    total = tl.zeros([R, N], dtype=tl.float32)
    for start in range(0, WIDTH, K):
        k = start + tl.arange(0, K)
        inside = (n < outs)[:, None] & (k < WIDTH)[None, :]
        at = n.to(tl.int64)[:, None] * WIDTH + k[None, :]
        wide = _numbers(codes, levels, at, inside, PACKED) * tl.load(scale + at // GROUP, mask=inside, other=0.0)
        given = tl.load(
            x + r.to(tl.int64)[:, None] * WIDTH + k[None, :], mask=(r < rows)[:, None] & (k < WIDTH)[None, :], other=0.0
        )
        total += tl.dot(given, tl.trans(wide.to(given.dtype)))
    place = r.to(tl.int64)[:, None] * outs + n[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=(r < rows)[:, None] & (n < outs)[None, :])


@triton.jit
def _numbers(codes, levels, at, inside, PACKED: tl.constexpr):
    if PACKED:
        both = tl.load(codes + at // 2, mask=inside, other=0).to(tl.int32)
        numbers = tl.load(levels + ((both >> ((at % 2) * 4).to(tl.int32)) & 15), mask=inside, other=0.0)
    else:
        numbers = tl.load(codes + at, mask=inside, other=0).to(tl.float32)
    return numbers
