"""Triton kernels of the GPU path. Each has a plain torch counterpart, which it is tested against.

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


@triton.jit
def _mix(x):
    """A 32-bit integer hash with little bias."""
    x = (x ^ (x >> 16)) * 0x21F0AAAD
    x = (x ^ (x >> 15)) * 0xD35A2D97
    return x ^ (x >> 15)


@triton.jit
def floor_kernel(
    logits, inverse_temperature, top_k, top_p, floors, vocabulary, WIDTH: tl.constexpr, WAYS: tl.constexpr
):
    """The lowest logit that a row may sample: its k-th highest, or where the highest ones reach top_p of what top_k
    left, whichever is higher; minus infinity for a row that asks for neither. Those equal to it are in.

    Nothing is sorted: the floor is sought, WAYS places in each pass over the row. Rows of all kinds share one graph.
    """
    row = tl.program_id(0).to(tl.int64)
    k, p = tl.load(top_k + row), tl.load(top_p + row)
    floor = tl.full([], -float("inf"), tl.float32)
    if (k > 0) | (p < 1):
        logits += row * vocabulary
        scale = tl.load(inverse_temperature + row) * LOG2_E
        highest = tl.full([WIDTH], -float("inf"), tl.float32)
        lowest = tl.full([WIDTH], float("inf"), tl.float32)
        for start in range(0, vocabulary, WIDTH):
            token = start + tl.arange(0, WIDTH)
            highest = tl.maximum(highest, tl.load(logits + token, mask=token < vocabulary, other=-float("inf")))
            lowest = tl.minimum(lowest, tl.load(logits + token, mask=token < vocabulary, other=float("inf")))
        top = tl.max(highest, 0)
        floor = tl.min(lowest, 0)
        if k > 0:
            if k <= WIDTH:  # k of all, or more, are no lower than the k-th of the lanes' highest
                ordered = tl.sort(highest, descending=True)
                floor = tl.sum(tl.where(tl.arange(0, WIDTH) == k - 1, ordered, 0.0), 0)
            floor = _raised(logits, vocabulary, floor, top, k.to(tl.float32), scale, False, WIDTH, WAYS)
        if p < 1:
            here = floor + tl.zeros([WAYS], tl.float32)
            left = tl.max(_above(logits, vocabulary, here, top, scale, True, WIDTH, WAYS), 0)
            floor = tl.maximum(floor, top - 40 / scale)  # what is 2^-40 as likely as the likeliest counts for nothing
            floor = _raised(logits, vocabulary, floor, top, left * p, scale, True, WIDTH, WAYS)
    tl.store(floors + row, floor)


@triton.jit
def _raised(logits, vocabulary, floor, top, need, scale, MASS: tl.constexpr, WIDTH: tl.constexpr, WAYS: tl.constexpr):
    """The floor as high as it can be with as much above it as is needed, if there was as much."""
    step = (top - floor) / WAYS
    while floor + step > floor:
        places = floor + step * tl.arange(1, WAYS + 1)
        found = _above(logits, vocabulary, places, top, scale, MASS, WIDTH, WAYS)
        floor = tl.maximum(floor, tl.max(tl.where(found >= need, places, -float("inf")), 0))
        step = step / WAYS
        if tl.sum((found == need).to(tl.int32), 0) > 0:
            step = tl.full([], 0.0, tl.float32)
    return floor


@triton.jit
def _above(logits, vocabulary, floors, top, scale, MASS: tl.constexpr, WIDTH: tl.constexpr, WAYS: tl.constexpr):
    """How many logits there are from each floor upwards, or how much of the probability, relative to the likeliest."""
    found = tl.zeros([WIDTH, WAYS], tl.float32)
    for start in range(0, vocabulary, WIDTH):
        token = start + tl.arange(0, WIDTH)
        x = tl.load(logits + token, mask=token < vocabulary, other=-float("inf"))
        worth = tl.exp2((x - top) * scale) if MASS else tl.full([WIDTH], 1.0, tl.float32)
        found += tl.where(x[:, None] >= floors[None, :], worth[:, None], 0.0)
    return tl.sum(found, 0)


@triton.jit
def sample_tiles_kernel(
    logits, inverse_temperature, floors, maxima, sums, choices, vocabulary, tiles,
    TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One stretch of one row's vocabulary: its part of the softmax, and its likeliest token.

    Every lane keeps its own maximum and sum; they are put together once, at the end.
    """
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lane = tl.arange(0, WIDTH)
    scale = tl.load(inverse_temperature + row) * LOG2_E  # logits in units of log 2 from here on
    floor = tl.load(floors + row)
    highest = tl.full([WIDTH], -1e30, tl.float32)
    total = tl.zeros([WIDTH], tl.float32)
    choice = tl.zeros([WIDTH], tl.int32)
    for start in range(tile * TILE, tile * TILE + TILE, WIDTH):
        token = start + lane
        x = _allowed(logits + row * vocabulary, token, vocabulary, floor) * scale
        higher = tl.maximum(highest, x)
        total = total * tl.exp2(highest - higher) + tl.exp2(x - higher)
        choice = tl.where(x > highest, token, choice)
        highest = higher
    place = row * tiles + tile
    top, winner = tl.max(highest, 0), tl.argmax(highest, 0)
    tl.store(maxima + place, top)
    tl.store(sums + place, tl.sum(total * tl.exp2(highest - top), 0))
    tl.store(choices + place, tl.sum(tl.where(lane == winner, choice, 0), 0))


@triton.jit
def _allowed(logits, token, vocabulary, floor):
    """A row's logits; minus infinity for those that it must not sample."""
    x = tl.load(logits + token, mask=token < vocabulary, other=-float("inf"))
    return tl.where(x >= floor, x, -float("inf"))


@triton.jit
def sample_rows_kernel(
    logits, seeds, inverse_temperature, noise, floors, maxima, sums, choices,
    tokens, positions, counts, moment, out_tokens, out_logprobs, vocabulary, tiles, out_stride,
    TILE: tl.constexpr, WIDTH: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Each row's token: noted in the step's column of the output, and put in place as the next step's input.

    A uniform number, which depends on the sample's seed and how many tokens it has and on nothing else in the batch,
    is looked up in the cumulative distribution: first among the stretches, then in one of them, piece by piece.
    """
    row = tl.program_id(0).to(tl.int64)
    tile, lane = tl.arange(0, TILES), tl.arange(0, WIDTH)
    inside = tile < tiles
    scale = tl.load(inverse_temperature + row) * LOG2_E
    highest = tl.load(maxima + row * tiles + tile, mask=inside, other=-float("inf"))
    top = tl.max(highest, 0)
    weight = tl.load(sums + row * tiles + tile, mask=inside, other=0.0) * tl.exp2(highest - top)
    total = tl.sum(weight, 0)
    floor = tl.load(floors + row)
    if tl.load(noise + row) > 0:
        key = _mix(tl.load(counts + row).to(tl.uint32) * 0x9E3779B9 + 0x85EBCA6B)
        bits = _mix(_mix(tl.load(seeds + row).to(tl.uint32) + key) ^ key)
        wanted = (bits >> 8).to(tl.float32) * 5.960464477539063e-08 * total
        upto = tl.cumsum(weight, 0)
        chosen = tl.minimum(tl.sum((upto <= wanted).to(tl.int32), 0), tiles - 1)
        rest = wanted - tl.sum(tl.where(tile < chosen, weight, 0.0), 0)

        piece = tl.arange(0, TILE // WIDTH)
        every = chosen * TILE + piece[:, None] * WIDTH + lane[None, :]
        x = _allowed(logits + row * vocabulary, every, vocabulary, floor) * scale
        in_piece = tl.sum(tl.exp2(x - top), 1)
        last = tl.cdiv(tl.minimum(vocabulary - chosen * TILE, TILE), WIDTH) - 1
        at = tl.minimum(tl.sum((tl.cumsum(in_piece, 0) <= rest).to(tl.int32), 0), last)
        rest -= tl.sum(tl.where(piece < at, in_piece, 0.0), 0)

        near = chosen * TILE + at * WIDTH + lane
        y = _allowed(logits + row * vocabulary, near, vocabulary, floor) * scale
        p = tl.exp2(y - top)
        place = tl.sum((tl.cumsum(p, 0) <= rest).to(tl.int32), 0)
        # Rounding may leave nothing to find where something should be; the likeliest one there is right as any.
        possible = tl.sum(tl.where(lane == place, p, 0.0), 0) > 0
        token = chosen * TILE + at * WIDTH + tl.where(possible, place, tl.argmax(p, 0))
    else:
        token = tl.load(choices + row * tiles + tl.argmax(highest, 0))
    logit = tl.load(logits + row * vocabulary + token) * scale
    now = tl.load(moment)
    tl.store(out_tokens + now * out_stride + row, token)
    tl.store(out_logprobs + now * out_stride + row, (logit - top - tl.log2(total)) * 0.6931471805599453)
    tl.store(tokens + row, token)
    tl.store(positions + row, tl.load(positions + row) + 1)
    tl.store(counts + row, tl.load(counts + row) + 1)
