"""Triton kernels of the forward pass on a GPU. Each has a plain torch counterpart, which it is tested against.

The cache of one layer is addressed by strides, so its layout is the caller's choice (head-major is fastest: a block of
one head is one contiguous piece). A row is one sequence of the step; `tables` holds its blocks, a row each.

Shapes: T tokens, R rows, H query heads, K key/value heads, G = H / K, D head dimension.
"""

import triton
import triton.language as tl

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
    TILE: tl.constexpr, SPLIT: tl.constexpr, SPLITS: tl.constexpr, S: tl.constexpr, M: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One new token a row, from its projections to what its heads read: norm, rotation, the write to the cache, and
    attention of the query heads of one key/value head, over one stretch of the context.

    The new token's own key and value are taken from the projections; the program of the stretch they fall into writes
    them. Of the programs of a row that has several stretches, the last to arrive puts them together.
    """
    row, kv_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    position = tl.load(positions + row)
    start = split * SPLIT
    if start > position:
        return
    end = tl.minimum(start + SPLIT, position)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    group, column, step = tl.arange(0, M), tl.arange(0, D), tl.arange(0, TILE)
    inside = group[:, None] < GROUP
    half = row * (D // 2) + column[None, :] % (D // 2)
    cos, sin = tl.load(cosines + half), tl.load(sines + half)
    sin = tl.where(column[None, :] < D // 2, -sin, sin)
    projections = qkv + row * ((HEADS + 2 * KV_HEADS) * D)
    wanted = kv_head * GROUP + group
    queries = _rotated(projections + wanted[:, None] * D, inside, q_weight, cos, sin, eps, D, NORM)
    table = tables + row * table_stride
    base = kv_head * head_stride
    best = tl.full([M], -float("inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    read = tl.zeros([M, D], tl.float32)
    if start + SPLIT > position:
        whole = column[None, :] < D
        k_new = _rotated(projections + (HEADS + kv_head) * D, whole, k_weight, cos, sin, eps, D, NORM)
        v_new = tl.load(projections + (HEADS + KV_HEADS + kv_head) * D + column[None, :])
        block = tl.load(table + position // BLOCK).to(tl.int64)
        place = base + block * block_stride + (position % BLOCK) * token_stride + column[None, :]
        tl.store(keys + place, k_new)
        tl.store(values + place, v_new)
        best = tl.sum(queries.to(tl.float32) * k_new.to(tl.float32), 1) * (scale * LOG2_E)
        total = tl.full([M], 1.0, tl.float32)
        read += v_new.to(tl.float32)
    for n in range(start, end, TILE):
        token = n + step
        seen = token < end
        if BLOCK % TILE == 0:
            block = tl.load(table + n // BLOCK).to(tl.int64)
            place = base + block * block_stride + (n % BLOCK + step) * token_stride
        else:
            block = tl.load(table + token // BLOCK, mask=seen, other=0).to(tl.int64)
            place = base + block * block_stride + (token % BLOCK) * token_stride
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
    heads = row * HEADS + wanted
    used = position // SPLIT + 1
    if SPLITS == 1 or used == 1:
        result = (read / total[:, None]).to(out.dtype.element_ty)
        tl.store(out + heads[:, None] * D + column[None, :], result, mask=inside)
    else:
        mine = heads * SPLITS + split
        tl.store(partial + mine[:, None] * D + column[None, :], read, mask=inside)
        tl.store(partial_max + mine, best, mask=group < GROUP)
        tl.store(partial_sum + mine, total, mask=group < GROUP)
        tl.debug_barrier()  # all of this program's stores, before it says that it has arrived
        if tl.atomic_add(arrived + row * KV_HEADS + kv_head, 1) == used - 1:
            tl.store(arrived + row * KV_HEADS + kv_head, 0)
            stretch = tl.arange(0, S)
            there = stretch < used
            for g in tl.static_range(GROUP):
                head = row * HEADS + kv_head * GROUP + g
                all_of_it = head * SPLITS + stretch
                # .cg: what other processors wrote during this kernel is in L2; L1 may hold something older
                tops = tl.load(partial_max + all_of_it, mask=there, other=-float("inf"), cache_modifier=".cg")
                sums = tl.load(partial_sum + all_of_it, mask=there, other=0.0, cache_modifier=".cg")
                reads = tl.load(
                    partial + all_of_it[:, None] * D + column[None, :], mask=there[:, None], other=0.0,
                    cache_modifier=".cg",
                )  # fmt: skip
                share = tl.exp2(tops - tl.max(tops, 0))
                result = tl.sum(reads * share[:, None], 0) / tl.sum(sums * share, 0)
                tl.store(out + head * D + column, result.to(out.dtype.element_ty))


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
