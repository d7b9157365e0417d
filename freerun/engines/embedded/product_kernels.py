"""Triton kernels for decoding a few rows: matrix products with what surrounds them, so that a layer is five kernels.

Where few rows are decoded, each kernel takes as long as it takes to start and to fetch its weights. So a product norms
its own input, and applies the gate, or adds to the residual stream, before it writes. Each kernel may begin while the
one before it still runs (`OVERLAP`): until that has ended it only touches what was there before, weights above all.

The residual stream is float32. Who writes a part of it also writes the sum of that part's squares, a row of `squares`
for each part, so that whoever norms it need not read it twice. The order of all sums is fixed.

Shapes: R rows, K inputs, N outputs of a product.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def begin_kernel(
    tokens, positions, embedding, inv_freq, residual, squares, cosines, sines, width, strength,
    WIDTH: tl.constexpr, HALF: tl.constexpr, HALVES: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """One token: its embedding, which begins the residual stream, and the cosines and sines of its angles. A row has
    TOKENS of them, one behind the other from its position on."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    inside = column < width
    place = tl.load(tokens + token).to(tl.int64) * width
    x = tl.load(embedding + place + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(residual + token * width + column, x, mask=inside)
    tl.store(squares + token, tl.sum(x * x, 0))
    half = tl.arange(0, HALVES)
    there = half < HALF
    position = tl.load(positions + token // TOKENS) + (token % TOKENS).to(tl.int32)
    angle = position.to(tl.float32) * tl.load(inv_freq + half, mask=there, other=0.0)
    tl.store(cosines + token * HALF + half, tl.cos(angle) * strength, mask=there)
    tl.store(sines + token * HALF + half, tl.sin(angle) * strength, mask=there)


@triton.jit
def _fetch(weight, first, count, K, ROWS: tl.constexpr):
    """Ask for rows of a matrix to be in L2 soon: 64 numbers of 16 bits are a line of it."""
    row, line = tl.arange(0, ROWS)[:, None], tl.arange(0, 16)[None, :]
    begin = weight + tl.minimum(first + row, count - 1).to(tl.int64) * K
    for at in range(0, K, 16 * 64):
        place = (begin + tl.minimum(at + line * 64, K - 1)).to(tl.int64)
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [place], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit(do_not_specialize=["rows", "parts"])
def product_kernel(
    x, squares, norm_weight, weight, bias, out, squares_out, eps, rows, parts, K, N,
    NORM: tl.constexpr, PARTS: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr, BIAS: tl.constexpr,
    M: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr,
    OVERLAP: tl.constexpr, FETCH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """x · weightᵀ, for M rows and BN outputs.

    NORM: x is the residual stream, and is normed first. GATED: weight is twice as high, and the outputs are
    silu(its upper half's) · its lower half's. ADD: out is the residual stream, to which the outputs are added.
    Roundings are those of doing all of this one after another.
    """
    first = tl.program_id(1) * BN
    if FETCH:
        _fetch(weight, first, N, K, BN)
        if GATED:
            _fetch(weight + N.to(tl.int64) * K, first, N, K, BN)
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    row = (tl.program_id(0) * M + tl.arange(0, M)).to(tl.int64)
    there = row < rows
    column = first + tl.arange(0, BN)
    kept = column < N
    step = tl.arange(0, BK)
    kind = weight.dtype.element_ty
    if NORM:
        part = tl.arange(0, PARTS)
        found = tl.load(
            squares + part[:, None] * rows + row[None, :], mask=(part < parts)[:, None] & there[None, :], other=0.0
        )
        scale = tl.rsqrt(tl.sum(found, 0) / K + eps)[:, None]
    x_at = x + row[:, None] * K + step[None, :]
    w_at = weight + tl.minimum(column, N - 1).to(tl.int64)[None, :] * K + step[:, None]
    acc = tl.zeros([M, BN], tl.float32)
    gated = tl.zeros([M, BN], tl.float32)
    for k in range(0, K, BK):
        if EVEN:
            w = tl.load(w_at + k)
            mine = tl.load(x_at + k, mask=there[:, None], other=0.0)
        else:
            w = tl.load(w_at + k, mask=(k + step < K)[:, None], other=0.0)
            mine = tl.load(x_at + k, mask=there[:, None] & (k + step < K)[None, :], other=0.0)
        if NORM:
            if EVEN:
                norm = tl.load(norm_weight + k + step)
            else:
                norm = tl.load(norm_weight + k + step, mask=k + step < K, other=0.0)
            mine = (mine * scale * norm.to(tl.float32)[None, :]).to(kind)
        acc = tl.dot(mine, w, acc, input_precision=PRECISION)
        if GATED:
            if EVEN:
                other = tl.load(w_at + N.to(tl.int64) * K + k)
            else:
                other = tl.load(w_at + N.to(tl.int64) * K + k, mask=(k + step < K)[:, None], other=0.0)
            gated = tl.dot(mine, other, gated, input_precision=PRECISION)
    if BIAS:
        acc += tl.load(bias + column, mask=kept, other=0.0).to(tl.float32)[None, :]
        if GATED:
            gated += tl.load(bias + N + column, mask=kept, other=0.0).to(tl.float32)[None, :]
    result = acc.to(kind)
    if GATED:
        wide = result.to(tl.float32)
        result = (wide * tl.sigmoid(wide)).to(kind) * gated.to(kind)
    place = out + row[:, None] * N + column[None, :]
    both = there[:, None] & kept[None, :]
    if ADD:
        total = tl.where(both, tl.load(place, mask=both, other=0.0) + result.to(tl.float32), 0.0)
        tl.store(place, total, mask=both)
        tl.store(squares_out + tl.program_id(1) * rows + row, tl.sum(total * total, 1), mask=there)
    else:
        tl.store(place, result, mask=both)
