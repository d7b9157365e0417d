"""AdamW whose two moments take 8 bits a number, block by block, as in 8-bit optimizers (Dettmers et al. 2022).

A row of a weight is cut into blocks of 256, its last one shorter. Each block has a scale for either moment, its largest
magnitude, and codes for the rest:

    mean      ± scale · (code / 127)², rounded to the nearest
    variance    scale · (code / 255)⁸, rounded up or down such that it is right in the mean

So no table is needed, and numbers near zero have the most codes. What divides the step is the variance's root, whose
error is the same share of it over many orders of magnitude; a variance that is not zero is never rounded to zero.

The variance moves by a thousandth of itself in a step, less than codes are apart: rounded to the nearest it would stay
where it is while gradients grow or shrink. Whether it is rounded up depends on thresholds instead, which each step has
anew (`thresholds`). They follow from the number of the step, so a resumed run rounds alike; and no block is in two
ranks' shares, so any number of ranks does.

Shapes: R rows, W numbers in a row, B blocks in a row.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from freerun.train.needs import MOMENT_BLOCK

ALONG_BLOCK, _ALONG_STEPS = 12_664_746, 9_560_334
"""What the threshold moves by from place to place and from step to step, in parts of 2²⁴ (0.7549, 0.5698: Roberts' R2
sequence, which fills the square evenly)."""
_CHUNK = 2**18
"""Numbers that are wide at a time."""
_LEAST_NUMBERS, _LEAST_WIDTH = 4096, 16
_TINY = torch.finfo(torch.float32).tiny


class Adam(NamedTuple):
    """What a step is taken with."""

    lr: float
    weight_decay: float
    betas: tuple[float, float]
    eps: float
    step: int
    """This one's number, from 1."""


class Moments(NamedTuple):
    """Codes as the weight's numbers, scales as its blocks."""

    mean: Tensor
    mean_scale: Tensor
    variance: Tensor
    variance_scale: Tensor


def has_blocks(shape: torch.Size) -> bool:
    """Whether a weight of that shape, all ranks' shares together, has its moments in 8 bits: vectors, small matrices
    and narrow ones would gain nothing."""
    return len(shape) > 1 and shape.numel() >= _LEAST_NUMBERS and shape[-1] >= _LEAST_WIDTH


def empty_moments(weight: Tensor) -> Moments:
    """Those of a weight that was never stepped."""
    blocks = -(-weight.shape[-1] // MOMENT_BLOCK)
    mean, variance = (torch.zeros_like(weight, dtype=dtype) for dtype in (torch.int8, torch.uint8))
    scale, other = (weight.new_zeros(*weight.shape[:-1], blocks, dtype=torch.float32) for _ in range(2))
    return Moments(mean, scale, variance, other)


def take_step(weight: Tensor, gradient: Tensor, moments: Moments, adam: Adam) -> None:
    """One step of AdamW, in place. The step itself is taken with the moments before they are rounded."""
    if not weight.numel():  # a rank that has no rows of it
        return
    rows = [x.view(-1, x.shape[-1]) for x in (weight, gradient.contiguous(), *moments)]
    if weight.is_cuda:
        from freerun.train.moments_kernel import take_step_on_gpu  # needs Triton

        take_step_on_gpu(rows[0], rows[1], Moments(*rows[2:]), adam, phase(adam.step), ALONG_BLOCK)
    else:
        size = max(1, _CHUNK // weight.shape[-1])
        for part in zip(*(torch.split(x, size) for x in rows), strict=True):
            _step_rows(part[0], part[1], Moments(*part[2:]), adam)


def _step_rows(weight_RW: Tensor, gradient_RW: Tensor, moments: Moments, adam: Adam) -> None:
    beta1, beta2 = adam.betas
    gradient_RW = gradient_RW.to(weight_RW.dtype)
    mean_RW = mean_of(moments.mean, moments.mean_scale, weight_RW.dtype).lerp_(gradient_RW, 1 - beta1)
    variance_RW = variance_of(moments.variance, moments.variance_scale, weight_RW.dtype)
    variance_RW.mul_(beta2).addcmul_(gradient_RW, gradient_RW, value=1 - beta2)
    below_RW = (variance_RW / (1 - beta2**adam.step)).sqrt_().add_(adam.eps)
    weight_RW.mul_(1 - adam.lr * adam.weight_decay)
    weight_RW.addcdiv_(mean_RW, below_RW, value=-adam.lr / (1 - beta1**adam.step))
    moments.mean_scale.copy_(_largest(mean_RW))
    moments.mean.copy_(_mean_codes(mean_RW, moments.mean_scale))
    moments.variance_scale.copy_(_largest(variance_RW))
    moments.variance.copy_(_variance_codes(variance_RW, moments.variance_scale, adam.step))


def mean_of(codes_RW: Tensor, scale_RB: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """What the codes stand for."""
    roots = codes_RW.to(dtype) / 127
    return roots * roots.abs() * _by_number(scale_RB, codes_RW)


def variance_of(codes_RW: Tensor, scale_RB: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """What the codes stand for."""
    return _eighth_power(codes_RW.to(dtype)) * _by_number(scale_RB, codes_RW)


def _mean_codes(mean_RW: Tensor, scale_RB: Tensor) -> Tensor:
    shares_RW = mean_RW / _by_number(scale_RB, mean_RW).clamp_min(_TINY)
    return (shares_RW.abs().sqrt_() * 127 + 0.5).floor_().clamp_(max=127).copysign_(mean_RW)


def _variance_codes(variance_RW: Tensor, scale_RB: Tensor, step: int) -> Tensor:
    shares_RW = variance_RW / _by_number(scale_RB, variance_RW).clamp_min(_TINY)
    codes_RW = (shares_RW.sqrt().sqrt_().sqrt_() * 255).floor_().clamp_(max=254)
    below_RW = _eighth_power(codes_RW)
    apart_RW = _eighth_power(codes_RW + 1) - below_RW
    goes_up_RW = apart_RW * thresholds(step, variance_RW.shape[-1]) < shares_RW - below_RW
    return torch.maximum(codes_RW + goes_up_RW, (variance_RW > 0).to(codes_RW.dtype))


def _eighth_power(codes: Tensor) -> Tensor:
    return (codes / 255).square().square().square()


def phase(step: int) -> int:
    """The threshold of a block's first place, of 2²⁴."""
    return step * _ALONG_STEPS % 2**24


@lru_cache(maxsize=8)
def thresholds(step: int, width: int) -> Tensor:
    """For each place of a row, from which share on of the way to the next code a number goes there: evenly spread over
    0 to 1 along a block, and at each place over the steps."""
    places = torch.arange(width) % MOMENT_BLOCK
    return ((places * ALONG_BLOCK + phase(step)) % 2**24).float() / 2**24


def _largest(x_RW: Tensor) -> Tensor:
    """Magnitude of each block."""
    padded = F.pad(x_RW.abs(), (0, -x_RW.shape[1] % MOMENT_BLOCK))
    return padded.view(len(padded), padded.shape[1] // MOMENT_BLOCK, MOMENT_BLOCK).amax(-1)


def _by_number(scale_RB: Tensor, like_RW: Tensor) -> Tensor:
    """The scale of each number's block."""
    return scale_RB.repeat_interleave(MOMENT_BLOCK, dim=1)[:, : like_RW.shape[1]]
