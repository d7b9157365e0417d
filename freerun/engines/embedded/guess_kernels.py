"""Triton kernels that guess how answers go on, and see which guesses were right, on the device: the host looks after
several steps. `drafts.py` does the like on the host, for runners that it waits for anyway.

A text is one long row of tokens, with -1 where there is none (yet). Each row of the step searches its own stretch of
it, for what followed where the newest tokens stood before.
"""

import triton
import triton.language as tl


@triton.jit
def seek_kernel(
    text, begins, ends, writes, found, BACK: tl.constexpr, WIDTH: tl.constexpr, PROGRAMS: tl.constexpr
):  # fmt: skip
    """Where in a row's stretch most of the newest tokens stand, and are followed by something: in `found`, how many
    of them (up to BACK) above the place, so that the largest is the longest, and of these the last."""
    row, program = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(begins + row), tl.load(ends + row)
    write = tl.load(writes + row)
    newest = tl.load(text + write - 1)
    best = tl.zeros([WIDTH], tl.int64)
    for start in range(begin + program * WIDTH, end - 1, PROGRAMS * WIDTH):
        at = start + tl.arange(0, WIDTH)
        inside = (at < end - 1) & (at != write - 1)
        alike = inside & (tl.load(text + at, mask=inside, other=-1) == newest)
        alike = alike & (tl.load(text + at + 1, mask=alike, other=-1) >= 0)
        if tl.sum(alike.to(tl.int32), 0) > 0:
            length = alike.to(tl.int64)
            for back in range(1, BACK):
                token = tl.load(text + write - 1 - back)
                earlier = tl.load(text + at - back, mask=alike & (at - back >= begin), other=-1)
                alike = alike & (earlier == token) & (token >= 0)
                length += alike.to(tl.int64)
            best = tl.maximum(best, tl.where(length > 0, length * 4294967296 + at, 0))
    longest = tl.max(best, 0)
    if longest > 0:
        tl.atomic_max(found + row, longest)


@triton.jit
def guess_kernel(text, ends, found, tokens, TOKENS: tl.constexpr, WIDTH: tl.constexpr):
    """A row's next inputs behind its newest token: what followed there. Where nothing is known any token does: it is
    checked like all others."""
    row = tl.program_id(0)
    best = tl.load(found + row)
    at = (best % 4294967296).to(tl.int32)
    offset = tl.arange(0, WIDTH)
    known = (best > 0) & (at + offset < tl.load(ends + row)) & (offset > 0) & (offset < TOKENS)
    guess = tl.load(text + at + offset, mask=known, other=0)
    tl.store(tokens + row * TOKENS + offset, tl.maximum(guess, 0), mask=(offset > 0) & (offset < TOKENS))


@triton.jit
def keep_kernel(
    text, writes, found, tokens, sampled, logprobs, positions, counts, moment, sampled_moment,
    out_tokens, out_logprobs, out_kept, out_found, stride, TOKENS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Keep what was sampled behind the tokens of a row, up to the first that is not the one that was guessed.
    The newest is the row's next input, and the row goes on behind it."""
    row = tl.program_id(0)
    offset = tl.arange(0, WIDTH)
    here = offset < TOKENS
    new = tl.load(sampled + row * TOKENS + offset, mask=here, other=-1)
    guessed = tl.load(tokens + row * TOKENS + offset + 1, mask=offset < TOKENS - 1, other=-2)
    kept = tl.min(tl.where(new == guessed, TOKENS, offset + 1), 0)
    now = tl.load(moment + row)
    place = (now * stride + row) * TOKENS + offset
    tl.store(out_tokens + place, new, mask=here)
    tl.store(out_logprobs + place, tl.load(logprobs + row * TOKENS + offset, mask=here), mask=here)
    tl.store(out_kept + now * stride + row, kept)
    tl.store(out_found + now * stride + row, tl.load(found + row))
    write = tl.load(writes + row)
    tl.store(text + write + offset, new, mask=offset < kept)
    tl.store(writes + row, write + kept)
    tl.store(found + row, tl.zeros([], tl.int64))
    tl.store(tokens + row * TOKENS, tl.sum(tl.where(offset == kept - 1, new, 0), 0))
    tl.store(positions + row, tl.load(positions + row) + kept)
    # The sampler has counted one more for each of the row's tokens
    count = tl.load(counts + row * TOKENS) - 1 + kept
    tl.debug_barrier()
    tl.store(counts + row * TOKENS + offset, count + offset, mask=here)
    tl.store(moment + row, now + 1)
    tl.store(sampled_moment, 0)
