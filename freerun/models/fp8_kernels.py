"""Triton kernels for weights in FP8: rounding rows to codes, and the product of codes. Needs Triton.

A number is a code in e4m3, of 8 bits, times a scale. Weights have a scale for each row, that is for each output; inputs
have one for each token, found when they are rounded, so that the largest of a token is the largest code.

Shapes: R rows (tokens), K inputs, N outputs of a product.
"""

import triton
import triton.language as tl

LARGEST = tl.constexpr(448.0)
"""The largest code."""
LEAST = tl.constexpr(1e-12)
"""Below this a row counts as this large: one of zeros alone has a scale, too."""


@triton.jit
def top_of(largest):
    """The number that is to be the largest code."""
    return tl.maximum(largest, LEAST)


@triton.jit
def as_codes(x, top):
    return (x * tl.div_rn(LARGEST, top)).to(tl.float8e4nv)


@triton.jit
def scale_of(top):
    return tl.div_rn(top, LARGEST)


@triton.jit
def round_kernel(x, codes, scales, width, WIDTH: tl.constexpr):
    """Rows to codes and scales, one program a row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    inside = column < width
    wide = tl.load(x + row * width + column, mask=inside, other=0.0).to(tl.float32)
    top = top_of(tl.max(tl.abs(wide), 0))
    tl.store(codes + row * width + column, as_codes(wide, top), mask=inside)
    tl.store(scales + row, scale_of(top))


@triton.jit(do_not_specialize=["rows"])
def product_kernel(
    x, x_scales, weight, w_scales, bias, out, rows, K, N,
    BIAS: tl.constexpr, M: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr,
    SPLIT: tl.constexpr, SWAP: tl.constexpr,
):  # fmt: skip
    """x · weightᵀ, for M rows and BN outputs, over one of SPLIT parts of the inputs: `out` has as many parts, to be
    added up by who reads it.

    SWAP: the tensor cores take 64 rows of what comes first, so where there are fewer tokens the weights come first.
    """
    row = (tl.program_id(0) * M + tl.arange(0, M)).to(tl.int64)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    part = tl.program_id(2)
    step = tl.arange(0, BK)
    # rows and outputs that are not there are read from the last one, and not written
    last_row, last_column = tl.minimum(row, rows - 1), tl.minimum(column, N - 1).to(tl.int64)
    x_at = x + last_row[:, None] * K + step[None, :]
    w_at = weight + last_column[:, None] * K + step[None, :]
    acc = tl.zeros([BN, M] if SWAP else [M, BN], tl.float32)
    span = tl.cdiv(tl.cdiv(K, BK), SPLIT) * BK
    for k in range(part * span, tl.minimum(part * span + span, K), BK):
        if EVEN:
            mine, w = tl.load(x_at + k), tl.load(w_at + k)
        else:
            there = (k + step < K)[None, :]
            mine, w = tl.load(x_at + k, mask=there, other=0.0), tl.load(w_at + k, mask=there, other=0.0)
        acc = tl.dot(w, tl.trans(mine), acc) if SWAP else tl.dot(mine, tl.trans(w), acc)
    if SWAP:
        acc = tl.trans(acc)
    acc = acc * tl.load(x_scales + last_row)[:, None] * tl.load(w_scales + last_column)[None, :]
    if BIAS:
        acc += tl.load(bias + last_column, mask=column * 0 + part == 0, other=0.0).to(tl.float32)[None, :]
    kept = (row < rows)[:, None] & (column < N)[None, :]
    place = (part * rows.to(tl.int64) + row)[:, None] * N + column[None, :]
    tl.store(out + place, acc.to(out.dtype.element_ty), mask=kept)
