"""Triton kernels of a mixture of experts in the engine: from what the router says of a few tokens to what their experts
make of them, without asking the device how many tokens an expert has. Each has a plain torch counterpart in
`models/experts.py`, which they are tested against.

One program takes one expert and some of its columns, and all tokens that go through it, a tile at a time: where tokens
are few, what counts is that each expert's weights are read once, and that those of experts without tokens are not read.

Shapes: T tokens, E experts, K of them for each token, S = T · K pairs in the order of tokens; C the model's width, F
that of an expert.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["place"])  # it is another one in every layer: one compilation for all
def choose_kernel(
    logits, chosen, weights, routes, moment, place, experts, moment_stride, token_stride,
    K: tl.constexpr, KS: tl.constexpr, ES: tl.constexpr, NORMED: tl.constexpr, NOTED: tl.constexpr,
):  # fmt: skip
    """One program a token: the K likeliest experts, what each counts, and a note of which they were."""
    token = tl.program_id(0).to(tl.int64)
    expert, pair = tl.arange(0, ES), tl.arange(0, KS)
    x = tl.load(logits + token * experts + expert, mask=expert < experts, other=-float("inf"))
    share = tl.exp(x - tl.max(x, 0))
    share = share / tl.sum(share, 0)
    left = tl.where(expert < experts, share, -1.0)
    found = tl.zeros([KS], tl.int32)
    counts = tl.zeros([KS], tl.float32)
    for k in tl.static_range(K):
        best = tl.minimum(tl.argmax(left, 0), experts - 1)  # of what is not a number, it could be any
        found = tl.where(pair == k, best, found)
        counts = tl.where(pair == k, tl.max(left, 0), counts)
        left = tl.where(expert == best, -1.0, left)
    if NORMED:
        counts = counts / tl.sum(counts, 0)
    tl.store(chosen + token * K + pair, found, mask=pair < K)
    tl.store(weights + token * K + pair, counts, mask=pair < K)
    if NOTED:
        note = routes + tl.load(moment).to(tl.int64) * moment_stride + token * token_stride + place * K
        tl.store(note + pair, found.to(routes.dtype.element_ty), mask=pair < K)


@triton.jit
def order_kernel(chosen, pairs, starts, count, WIDTH: tl.constexpr):
    """One program an expert: where its pairs begin when they are sorted by expert, and which they are."""
    expert = tl.program_id(0)
    lane = tl.arange(0, WIDTH)
    start = 0
    for first in range(0, count, WIDTH):
        inside = first + lane < count
        theirs = tl.load(chosen + first + lane, mask=inside, other=2**30)
        start += tl.sum((theirs < expert).to(tl.int32), 0)
    tl.store(starts + expert, start)
    for first in range(0, count, WIDTH):
        inside = first + lane < count
        mine = (tl.load(chosen + first + lane, mask=inside, other=2**30) == expert).to(tl.int32)
        tl.store(pairs + start + tl.cumsum(mine, 0) - 1, first + lane, mask=mine == 1)
        start += tl.sum(mine, 0)
    if expert == tl.num_programs(0) - 1:
        tl.store(starts + expert + 1, start)


@triton.jit
def inner_kernel(
    x, gate_up, weights, pairs, starts, out,
    C: tl.constexpr, F: tl.constexpr, K: tl.constexpr, M: tl.constexpr, N: tl.constexpr, STEP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """silu(gate) · up · weight of an expert's pairs, in their sorted order. Gate and up are rounded as the trainer's
    are."""
    expert = tl.program_id(0).to(tl.int64)
    start, end = tl.load(starts + expert), tl.load(starts + expert + 1)
    column = tl.program_id(1) * N + tl.arange(0, N)
    matrix = gate_up + (expert * 2 * F + column[:, None]) * C
    step, wanted = tl.arange(0, STEP), column[:, None] < F
    for first in range(start, end, M):
        row = first + tl.arange(0, M)
        inside = row < end
        pair = tl.load(pairs + row, mask=inside, other=0)
        source = x + (pair // K).to(tl.int64)[:, None] * C
        gate = tl.zeros([M, N], tl.float32)
        up = tl.zeros([M, N], tl.float32)
        for at in range(0, C, STEP):
            here = (at + step)[None, :]
            tokens = tl.load(source + here, mask=inside[:, None] & (here < C), other=0.0)
            of_gate = tl.load(matrix + here, mask=wanted & (here < C), other=0.0)
            of_up = tl.load(matrix + F * C + here, mask=wanted & (here < C), other=0.0)
            gate = tl.dot(tokens, tl.trans(of_gate), gate, input_precision=PRECISION)
            up = tl.dot(tokens, tl.trans(of_up), up, input_precision=PRECISION)
        kind = out.dtype.element_ty
        gate, up = gate.to(kind).to(tl.float32), up.to(kind).to(tl.float32)
        counts = tl.load(weights + pair, mask=inside, other=0.0)
        made = gate * tl.sigmoid(gate) * up * counts[:, None]
        target = out + row.to(tl.int64)[:, None] * F + column[None, :]
        tl.store(target, made.to(kind), mask=inside[:, None] & (column[None, :] < F))


@triton.jit
def outer_kernel(
    inner, down, pairs, starts, out,
    C: tl.constexpr, F: tl.constexpr, M: tl.constexpr, N: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """An expert's second product, from the sorted order back to that of tokens."""
    expert = tl.program_id(0).to(tl.int64)
    start, end = tl.load(starts + expert), tl.load(starts + expert + 1)
    column = tl.program_id(1) * N + tl.arange(0, N)
    matrix = down + (expert * C + column[:, None]) * F
    step, wanted = tl.arange(0, STEP), column[:, None] < C
    for first in range(start, end, M):
        row = first + tl.arange(0, M)
        inside = row < end
        source = inner + row.to(tl.int64)[:, None] * F
        made = tl.zeros([M, N], tl.float32)
        for at in range(0, F, STEP):
            here = (at + step)[None, :]
            values = tl.load(source + here, mask=inside[:, None] & (here < F), other=0.0)
            weights = tl.load(matrix + here, mask=wanted & (here < F), other=0.0)
            made = tl.dot(values, tl.trans(weights), made, input_precision=PRECISION)
        pair = tl.load(pairs + row, mask=inside, other=0).to(tl.int64)
        target = out + pair[:, None] * C + column[None, :]
        tl.store(target, made.to(out.dtype.element_ty), mask=inside[:, None] & (column[None, :] < C))


@triton.jit
def sum_kernel(pairs, out, width, K: tl.constexpr, WIDTH: tl.constexpr):
    """What a token's experts made, together, in float32."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < width
    total = tl.zeros([WIDTH], tl.float32)
    for k in tl.static_range(K):
        total += tl.load(pairs + (token * K + k) * width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * width + column, total, mask=inside)
