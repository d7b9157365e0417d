"""A step of AdamW with moments in 8 bits, in one pass over memory. `moments.py` has it in plain torch. Needs Triton."""

import triton
import triton.language as tl
from torch import Tensor

from freerun.train.moments import Adam, Moments
from freerun.train.needs import MOMENT_BLOCK

_BLOCKS = 4
"""That one program steps."""


def take_step_on_gpu(
    weight: Tensor, gradient: Tensor, moments: Moments, adam: Adam, phase: int, along_block: int
) -> None:
    """Takes a step of tensors that have two dimensions. `phase` is the first threshold of a block, which has others
    `along_block` apart; both count in parts of 2²⁴."""
    blocks, width = moments.mean_scale.numel(), weight.shape[1]
    (beta1, beta2), step = adam.betas, adam.step
    step_kernel[(triton.cdiv(blocks, _BLOCKS),)](
        weight, gradient, *moments, blocks, width, phase, 1 - adam.lr * adam.weight_decay,
        adam.lr / (1 - beta1**step), 1 - beta1, 1 - beta2, 1 / (1 - beta2**step), adam.eps,
        ALONG=along_block, BLOCK=MOMENT_BLOCK, BLOCKS=_BLOCKS, num_warps=4,
    )  # fmt: skip


@triton.jit(do_not_specialize=["phase"])
def step_kernel(
    weight, gradient, mean, mean_scale, variance, variance_scale,
    blocks, width, phase, kept, lr, new1, new2, widening, eps,
    ALONG: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    block = (tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS))[:, None]
    place = tl.arange(0, BLOCK)[None, :]
    per_row = tl.cdiv(width, BLOCK)
    column = block % per_row * BLOCK + place
    inside = (block < blocks) & (column < width)
    at = block // per_row * width + column

    w, g = tl.load(weight + at, mask=inside, other=0.0), tl.load(gradient + at, mask=inside, other=0.0)
    root = tl.load(mean + at, mask=inside, other=0).to(tl.float32) / 127
    m = root * tl.abs(root) * tl.load(mean_scale + block, mask=block < blocks, other=0.0)
    m += (g - m) * new1
    v = _eighth_power(tl.load(variance + at, mask=inside, other=0).to(tl.float32))
    v *= tl.load(variance_scale + block, mask=block < blocks, other=0.0)
    v += (g * g - v) * new2
    tl.store(weight + at, w * kept - lr * m / (tl.sqrt(v * widening) + eps), mask=inside)

    most = tl.max(tl.abs(m), 1)[:, None]
    tl.store(mean_scale + block, most, mask=block < blocks)
    code = tl.minimum(tl.floor(tl.sqrt(tl.abs(m) / tl.maximum(most, 1.1754944e-38)) * 127 + 0.5), 127.0)
    tl.store(mean + at, tl.where(m < 0, -code, code).to(tl.int8), mask=inside)

    most = tl.max(v, 1)[:, None]
    tl.store(variance_scale + block, most, mask=block < blocks)
    share = v / tl.maximum(most, 1.1754944e-38)
    code = tl.minimum(tl.floor(tl.sqrt(tl.sqrt(tl.sqrt(share))) * 255), 254.0)
    below = _eighth_power(code)
    threshold = ((place * ALONG + phase) & 0xFFFFFF).to(tl.float32) / 16777216
    code = tl.where((_eighth_power(code + 1) - below) * threshold < share - below, code + 1, code)
    tl.store(variance + at, tl.where(v > 0, tl.maximum(code, 1.0), 0.0).to(tl.uint8), mask=inside)


@triton.jit
def _eighth_power(code):
    share = code / 255
    square = share * share
    return square * square * (square * square)
