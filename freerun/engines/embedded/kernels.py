"""Triton kernels of the forward pass on a GPU. Each has a plain torch counterpart, which it is tested against.

The cache of one layer is addressed by strides, so its layout is the caller's choice (head-major is fastest: a block of
one head is one contiguous piece). A row is one sequence of the step; `tables` holds its blocks, a row each.

Shapes: T tokens, R rows, H query heads, K key/value heads, G = H / K, D head dimension.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from freerun.models.fp8_kernels import as_codes, scale_of, top_of

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def add_norm_kernel(residual, delta, weight, out, eps, width, HAS_DELTA: tl.constexpr, WIDTH: tl.constexpr):
    """residual += delta, in place; out = RMSNorm(residual) · weight. One program a token."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    inside = column < width
    x = tl.load(residual + row * width + column, mask=inside, other=0.0)
    if HAS_DELTA:
        more = tl.load(delta + row * width + column, mask=inside, other=0.0)
        x = (x.to(tl.float32) + more.to(tl.float32)).to(x.dtype)
        tl.store(residual + row * width + column, x, mask=inside)
    wide = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / width + eps)
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, (wide * scale * w).to(out.dtype.element_ty), mask=inside)


@triton.jit
def silu_mul_kernel(gate_up, out, width, WIDTH: tl.constexpr):
    """out = silu(gate) · up, for gate and up side by side."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < width
    gate = tl.load(gate_up + row * 2 * width + column, mask=inside, other=0.0)
    up = tl.load(gate_up + row * 2 * width + width + column, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    gated = (wide * tl.sigmoid(wide)).to(gate.dtype)
    tl.store(out + row * width + column, gated * up, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def add_norm_rounded_kernel(
    residual, delta, weight, codes, scales, eps, rows, width, PARTS: tl.constexpr, WIDTH: tl.constexpr
):
    """residual += delta, the sum of its PARTS, in place; RMSNorm(residual) · weight in FP8. One program a token."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    inside = column < width
    place = row * width + column
    x = tl.load(residual + place, mask=inside, other=0.0)
    if PARTS > 0:
        for part in tl.static_range(PARTS):
            more = delta + (part * rows.to(tl.int64) + row) * width + column
            x += tl.load(more, mask=inside, other=0.0).to(tl.float32)
        tl.store(residual + place, x, mask=inside)
    scale = tl.rsqrt(tl.sum(x * x, 0) / width + eps)
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    normed = x * scale * w
    top = top_of(tl.max(tl.abs(normed), 0))
    tl.store(codes + place, as_codes(normed, top), mask=inside)
    tl.store(scales + row, scale_of(top))


@triton.jit
def silu_mul_rounded_kernel(gate_up, codes, scales, width, FIRST: tl.constexpr, REST: tl.constexpr):
    """silu(gate) · up in FP8, for gate and up side by side. One program a token, whose numbers are a power of two and a
    rest: all of them at once would be up to twice as many."""
    row = tl.program_id(0).to(tl.int64)
    first, rest = tl.arange(0, FIRST), FIRST + tl.arange(0, REST)
    here, there = _gated(gate_up + row * 2 * width, first, width), _gated(gate_up + row * 2 * width, rest, width)
    top = top_of(tl.maximum(tl.max(tl.abs(here), 0), tl.max(tl.abs(there), 0)))
    tl.store(codes + row * width + first, as_codes(here, top))
    tl.store(codes + row * width + rest, as_codes(there, top), mask=rest < width)
    tl.store(scales + row, scale_of(top))


@triton.jit
def _gated(row, column, width):
    gate = tl.load(row + column, mask=column < width, other=0.0).to(tl.float32)
    up = tl.load(row + width + column, mask=column < width, other=0.0).to(tl.float32)
    return gate * tl.sigmoid(gate) * up


@triton.jit(do_not_specialize=["table_stride"])  # it is as wide as the longest row's table: one compilation for all
def rotate_write_kernel(
    qkv, q_out, keys, values, q_weight, k_weight, cosines, sines, positions, rows, tables,
    eps, table_stride, block_stride, head_stride, token_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, NORM: tl.constexpr,
    ALL: tl.constexpr,
):  # fmt: skip
    """All heads of one token: norm (Qwen3), rotation, and for keys and values the write to the cache."""
    token = tl.program_id(0).to(tl.int64)
    head, half = tl.arange(0, ALL)[:, None], tl.arange(0, D // 2)[None, :]
    is_q, is_k = head < HEADS, (head >= HEADS) & (head < HEADS + KV_HEADS)
    is_v = (head >= HEADS + KV_HEADS) & (head < HEADS + 2 * KV_HEADS)
    source = qkv + (token * (HEADS + 2 * KV_HEADS) + head) * D + half
    first = tl.load(source, mask=is_q | is_k | is_v, other=0.0)
    second = tl.load(source + D // 2, mask=is_q | is_k | is_v, other=0.0)
    kind = first.dtype
    a, b = first.to(tl.float32), second.to(tl.float32)
    if NORM:
        scale = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / D + eps)[:, None]
        low = tl.where(is_q, tl.load(q_weight + half), tl.load(k_weight + half)).to(tl.float32)
        high = tl.where(is_q, tl.load(q_weight + D // 2 + half), tl.load(k_weight + D // 2 + half)).to(tl.float32)
        a, b = (a * scale * low).to(kind).to(tl.float32), (b * scale * high).to(kind).to(tl.float32)
    position = tl.load(positions + token)
    cos, sin = tl.load(cosines + token * (D // 2) + half), tl.load(sines + token * (D // 2) + half)
    first = tl.where(is_v, first, (a * cos - b * sin).to(kind))
    second = tl.where(is_v, second, (b * cos + a * sin).to(kind))
    target = q_out + (token * HEADS + head) * D + half
    tl.store(target, first, mask=is_q)
    tl.store(target + D // 2, second, mask=is_q)
    row = tl.load(rows + token).to(tl.int64)
    block = tl.load(tables + row * table_stride + position // BLOCK).to(tl.int64)
    place = block * block_stride + (position % BLOCK) * token_stride + half
    key = keys + place + (head - HEADS) * head_stride
    tl.store(key, first, mask=is_k)
    tl.store(key + D // 2, second, mask=is_k)
    value = values + place + (head - HEADS - KV_HEADS) * head_stride
    tl.store(value, first, mask=is_v)
    tl.store(value + D // 2, second, mask=is_v)


@triton.jit
def _rotated(head, inside, weight, cos, sin, eps, D: tl.constexpr, NORM: tl.constexpr):
    """Heads of one token, normed (Qwen3) and rotated. `sin` is negative in the first half of a head."""
    column = tl.arange(0, D)[None, :]
    partner = (column + D // 2) % D
    mine = tl.load(head + column, mask=inside, other=0.0)
    other = tl.load(head + partner, mask=inside, other=0.0)
    kind = mine.dtype
    a, b = mine.to(tl.float32), other.to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(a * a, 1) / D + eps)[:, None]
        a = (a * scale * tl.load(weight + column).to(tl.float32)).to(kind).to(tl.float32)
        b = (b * scale * tl.load(weight + partner).to(tl.float32)).to(kind).to(tl.float32)
    return (a * cos + b * sin).to(kind)


@triton.jit
def decode_kernel(
    qkv, q_weight, k_weight, cosines, sines, keys, values, positions, tables,
    out, partial, partial_max, partial_sum, arrived,
    eps, scale, table_stride, block_stride, head_stride, token_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, NORM: tl.constexpr,
    TOKENS: tl.constexpr, TILE: tl.constexpr, SPLIT: tl.constexpr, SPLITS: tl.constexpr, M: tl.constexpr,
    OVERLAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """TOKENS new tokens a row, from their projections to what their heads read: norm, rotation, the write to the cache,
    and attention of the query heads of one key/value head, over one stretch of the context.

    The new tokens' own keys and values are taken from the projections; the program of the stretch that the first of
    them falls into writes them, and looks at them. Of the programs of a row that has several stretches, the last to
    arrive puts them together. A query is a pair of token and head: there are at most M.
    """
    row, kv_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    position = tl.load(positions + row)
    start = split * SPLIT
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    if start > position:
        return
    end = tl.minimum(start + SPLIT, position)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    WIDE: tl.constexpr = (HEADS + 2 * KV_HEADS) * D
    pair, column, step = tl.arange(0, M), tl.arange(0, D), tl.arange(0, TILE)
    inside = pair[:, None] < GROUP * TOKENS
    if TOKENS == 1:
        token = row + pair * 0
        half = row * (D // 2) + column[None, :] % (D // 2)
    else:
        token = row * TOKENS + tl.minimum(pair // GROUP, TOKENS - 1)
        half = token[:, None] * (D // 2) + column[None, :] % (D // 2)
    cos, sin = tl.load(cosines + half), tl.load(sines + half)
    sin = tl.where(column[None, :] < D // 2, -sin, sin)
    wanted = kv_head * GROUP + pair % GROUP
    queries = _rotated(qkv + (token * WIDE + wanted * D)[:, None], inside, q_weight, cos, sin, eps, D, NORM)
    table = tables + row * table_stride
    base = kv_head * head_stride
    best = tl.full([M], -float("inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    read = tl.zeros([M, D], tl.float32)
    if start + SPLIT > position:
        if TOKENS == 1:
            whole = column[None, :] < D
            own = qkv + row * WIDE
            k_own = _rotated(own + (HEADS + kv_head) * D, whole, k_weight, cos, sin, eps, D, NORM)
            v_own = tl.load(own + (HEADS + KV_HEADS + kv_head) * D + column[None, :])
            block_own = tl.load(table + position // BLOCK).to(tl.int64)
            place_own = base + block_own * block_stride + (position % BLOCK) * token_stride + column[None, :]
            tl.store(keys + place_own, k_own)
            tl.store(values + place_own, v_own)
            best = tl.sum(queries.to(tl.float32) * k_own.to(tl.float32), 1) * (scale * LOG2_E)
            total = tl.full([M], 1.0, tl.float32)
            read += v_own.to(tl.float32)
        else:
            new = tl.arange(0, 16)
            real = (new < TOKENS)[:, None]
            later = row * TOKENS + tl.minimum(new, TOKENS - 1)
            angles = later[:, None] * (D // 2) + column[None, :] % (D // 2)
            cos_new, sin_new = tl.load(cosines + angles), tl.load(sines + angles)
            sin_new = tl.where(column[None, :] < D // 2, -sin_new, sin_new)
            theirs = qkv + (later * WIDE)[:, None]
            k_new = _rotated(theirs + (HEADS + kv_head) * D, real, k_weight, cos_new, sin_new, eps, D, NORM)
            v_new = tl.load(theirs + (HEADS + KV_HEADS + kv_head) * D + column[None, :], mask=real, other=0.0)
            at = position + new
            block_new = tl.load(table + at // BLOCK, mask=new < TOKENS, other=0).to(tl.int64)
            place_new = (base + block_new * block_stride + (at % BLOCK) * token_stride)[:, None] + column[None, :]
            tl.store(keys + place_new, k_new, mask=real)
            tl.store(values + place_new, v_new, mask=real)
            alike = tl.dot(queries, tl.trans(k_new), input_precision=PRECISION) * (scale * LOG2_E)
            before = new[None, :] <= tl.minimum(pair // GROUP, TOKENS - 1)[:, None]
            alike = tl.where(before, alike, -float("inf"))
            best = tl.max(alike, 1)
            share = tl.exp2(alike - best[:, None])
            total = tl.sum(share, 1)
            read = tl.dot(share.to(v_new.dtype), v_new, input_precision=PRECISION)
    for n in range(start, end, TILE):
        seen = n + step < end
        if BLOCK % TILE == 0:
            block = tl.load(table + n // BLOCK).to(tl.int64)
            place = base + block * block_stride + (n % BLOCK + step) * token_stride
        else:
            block = tl.load(table + (n + step) // BLOCK, mask=seen, other=0).to(tl.int64)
            place = base + block * block_stride + ((n + step) % BLOCK) * token_stride
        k = tl.load(keys + place[:, None] + column[None, :], mask=seen[:, None], other=0.0)
        v = tl.load(values + place[:, None] + column[None, :], mask=seen[:, None], other=0.0)
        scores = tl.dot(queries, tl.trans(k), input_precision=PRECISION) * (scale * LOG2_E)
        scores = tl.where(seen[None, :], scores, -float("inf"))
        higher = tl.maximum(best, tl.max(scores, 1))
        weight = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(best - higher)
        read = read * shrink[:, None] + tl.dot(weight.to(v.dtype), v, input_precision=PRECISION)
        total = total * shrink + tl.sum(weight, 1)
        best = higher
    heads = token * HEADS + wanted
    used = position // SPLIT + 1
    target = out + heads[:, None] * D + column[None, :]
    if SPLITS == 1 or used == 1:
        tl.store(target, (read / total[:, None]).to(out.dtype.element_ty), mask=inside)
    else:
        mine = heads * SPLITS + split
        tl.store(partial + mine[:, None] * D + column[None, :], read, mask=inside)
        tl.store(partial_max + mine, best, mask=pair < GROUP * TOKENS)
        tl.store(partial_sum + mine, total, mask=pair < GROUP * TOKENS)
        tl.debug_barrier()  # all of this program's stores, before it says that it has arrived
        if tl.atomic_add(arrived + row * KV_HEADS + kv_head, 1) == used - 1:
            tl.store(arrived + row * KV_HEADS + kv_head, 0)
            best = tl.full([M], -1e30, tl.float32)
            total = tl.zeros([M], tl.float32)
            read = tl.zeros([M, D], tl.float32)
            for other in range(used):
                one = heads * SPLITS + other
                # .cg: what other processors wrote during this kernel is in L2; L1 may hold something older
                top = tl.load(partial_max + one, mask=pair < GROUP * TOKENS, other=-1e30, cache_modifier=".cg")
                theirs = tl.load(partial_sum + one, mask=pair < GROUP * TOKENS, other=0.0, cache_modifier=".cg")
                more = tl.load(
                    partial + one[:, None] * D + column[None, :], mask=inside, other=0.0, cache_modifier=".cg"
                )
                higher = tl.maximum(best, top)
                shrink, grown = tl.exp2(best - higher), tl.exp2(top - higher)
                read = read * shrink[:, None] + more * grown[:, None]
                total = total * shrink + theirs * grown
                best = higher
            tl.store(target, (read / total[:, None]).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["table_stride"])
def prefill_kernel(
    q, keys, values, tables, tile_rows, tile_starts, row_first, row_start, row_count, out,
    scale, table_stride, block_stride, head_stride, token_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
    M: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Many tokens a row: a tile of M (query, head) pairs of one key/value head, over the context up to each query.

    A row's new tokens lie at row_first.. in the packed step and at positions row_start.. of its sequence.
    """
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    row = tl.load(tile_rows + tile).to(tl.int64)
    pair = tl.arange(0, M)
    query = tl.load(tile_starts + tile) + pair // GROUP
    count = tl.load(row_count + row)
    inside = (query < count) & (pair // GROUP < M // GROUP)
    position = tl.load(row_start + row) + query
    token = (tl.load(row_first + row) + query).to(tl.int64)
    column, step = tl.arange(0, D), tl.arange(0, TILE)
    heads = token * HEADS + kv_head * GROUP + pair % GROUP
    queries = tl.load(q + heads[:, None] * D + column[None, :], mask=inside[:, None], other=0.0)
    best = tl.full([M], -float("inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    read = tl.zeros([M, D], tl.float32)
    end = tl.max(tl.where(inside, position, 0), 0) + 1
    table = tables + row * table_stride
    base = kv_head * head_stride
    for n in range(0, end, TILE):
        other = n + step
        seen = other < end
        block = tl.load(table + other // BLOCK, mask=seen, other=0).to(tl.int64)
        place = base + block * block_stride + (other % BLOCK) * token_stride
        k = tl.load(keys + place[:, None] + column[None, :], mask=seen[:, None], other=0.0)
        v = tl.load(values + place[:, None] + column[None, :], mask=seen[:, None], other=0.0)
        scores = tl.dot(queries, tl.trans(k), input_precision=PRECISION) * (scale * LOG2_E)
        scores = tl.where(other[None, :] <= position[:, None], scores, -float("inf"))
        higher = tl.maximum(best, tl.max(scores, 1))
        weight = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(best - higher)
        read = read * shrink[:, None] + tl.dot(weight.to(v.dtype), v, input_precision=PRECISION)
        total = total * shrink + tl.sum(weight, 1)
        best = higher
    result = (read / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + heads[:, None] * D + column[None, :], result, mask=inside[:, None])
