"""Triton kernels from logits to tokens, their log-probabilities and the next step's input. `sampler.py` does the same
in plain torch.

Both sampling kernels read a row's logits down to its floor, which is minus infinity unless it asked for top-k or top-p.
Log-probabilities are among all tokens, whatever the floor.
"""

import triton
import triton.language as tl

from freerun.engines.embedded.kernels import LOG2_E


@triton.jit
def _mix(x):
    """A 32-bit integer hash with little bias."""
    x = (x ^ (x >> 16)) * 0x21F0AAAD
    x = (x ^ (x >> 15)) * 0xD35A2D97
    return x ^ (x >> 15)


@triton.jit
def floor_kernel(
    logits, inverse_temperature, top_k, top_p, floors, masses, vocabulary, WIDTH: tl.constexpr, WAYS: tl.constexpr
):
    """The lowest logit that a row may sample: its k-th highest, or where the highest ones reach top_p of what top_k
    left, whichever is higher; minus infinity for a row that asks for neither. Those equal to it are in. `masses` is how
    likely all tokens are together, relative to the likeliest; 0 for a row that asks for neither: nothing is left out.

    Nothing is sorted: the floor is sought, WAYS places in each pass over the row. Rows of all kinds share one graph.
    """
    row = tl.program_id(0).to(tl.int64)
    k, p = tl.load(top_k + row), tl.load(top_p + row)
    floor, mass = tl.full([], -float("inf"), tl.float32), tl.full([], 0.0, tl.float32)
    if (k > 0) | (p < 1):
        logits += row * vocabulary
        scale = tl.load(inverse_temperature + row) * LOG2_E
        highest = tl.full([WIDTH], -float("inf"), tl.float32)
        lowest = tl.full([WIDTH], float("inf"), tl.float32)
        total = tl.zeros([WIDTH], tl.float32)
        for start in range(0, vocabulary, WIDTH):
            token = start + tl.arange(0, WIDTH)
            x = tl.load(logits + token, mask=token < vocabulary, other=-1e30)
            higher = tl.maximum(highest, x)
            total = total * tl.exp2((highest - higher) * scale) + tl.exp2((x - higher) * scale)
            highest = higher
            lowest = tl.minimum(lowest, tl.load(logits + token, mask=token < vocabulary, other=float("inf")))
        top = tl.max(highest, 0)
        mass = tl.sum(total * tl.exp2((highest - top) * scale), 0)
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
    tl.store(masses + row, mass)


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
    logits, seeds, inverse_temperature, noise, floors, masses, maxima, sums, choices,
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
    mass = tl.load(masses + row)  # the likeliest token is never left out, so both are relative to the same one
    everything = tl.where(mass > 0, mass, total)
    now = tl.load(moment)
    tl.store(out_tokens + now * out_stride + row, token)
    tl.store(out_logprobs + now * out_stride + row, (logit - top - tl.log2(everything)) * 0.6931471805599453)
    tl.store(tokens + row, token)
    tl.store(positions + row, tl.load(positions + row) + 1)
    tl.store(counts + row, tl.load(counts + row) + 1)
