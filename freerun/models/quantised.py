"""Linear layers whose frozen weights take 8 or 4 bits a number, below an adapter (QLoRA, Dettmers et al. 2023).

Numbers go in groups along a row, each group with a scale of its own, its largest magnitude: in 8 bits as whole numbers
of 1/127 of it, in 4 bits as one of sixteen quantiles of a normal distribution, zero among them. A matrix is made from
that when it is multiplied with, and again for the gradient of what came in, so no wide copy of it outlives its product.
Engine and trainer multiply with the same numbers, in the type that they compute in.
"""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from freerun.core import ConfigError
from freerun.models.decoder import Decoder
from freerun.models.shape import QUANTISED_GROUP

_WIDTH = 1024
"""Numbers that one program of the kernel makes."""
_FEW_ROWS, _OUTS = 64, 32
"""Up to so many rows a product reads the codes itself, so many rows of them a program."""


class QuantisedLinear(nn.Linear):
    """Its weight is rows of codes, one a byte or two, and `scale` has the groups' scales."""

    scale: nn.Parameter

    def __init__(self, base: nn.Linear, bits: int) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.bias, self.bits = base.in_features, base.out_features, base.bias, bits
        codes, scale = (part.to(base.weight.device) for part in empty_parts(base.weight, bits))
        self.weight = nn.Parameter(codes, requires_grad=False)
        self.scale = nn.Parameter(scale, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return quantised_product(x, self.weight, self.scale, self.bias)


def quantise_layers(decoder: Decoder, bits: int) -> None:
    """In place, on the meta device: all layers that can be adapted. Their weights are still to come."""
    for name in list(decoder.adaptable):
        holder, _, target = name.rpartition(".")
        base = decoder.get_submodule(name)
        assert isinstance(base, nn.Linear)
        setattr(decoder.get_submodule(holder), target, QuantisedLinear(base, bits))


def group_of(width: int) -> int:
    """The numbers of a group, in rows so wide: they divide a row."""
    group = QUANTISED_GROUP
    while width % group:
        group //= 2
    return group


def empty_parts(weight: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Codes and scales of such a weight, on the meta device."""
    rows, width = weight.shape
    if bits == 4 and width % 2:
        raise ConfigError("train.lora.bits=4 needs matrices of even width: use 8")
    codes = torch.empty(
        rows, width // 2 if bits == 4 else width, dtype=torch.uint8 if bits == 4 else torch.int8, device="meta"
    )
    return codes, torch.empty(rows, width // group_of(width), dtype=torch.float32, device="meta")


def quantised(weight: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Its codes and scales."""
    rows, width = weight.shape
    groups = weight.float().view(rows, -1, group_of(width))
    scale = groups.abs().amax(-1).clamp_min(1e-12)
    if bits == 8:
        scale = scale / 127
        return (groups / scale[..., None]).round().clamp(-127, 127).to(torch.int8).view(rows, width), scale
    levels = _levels(str(weight.device))
    edges = (levels[1:] + levels[:-1]) / 2
    codes = torch.bucketize((groups / scale[..., None]).view(rows, width), edges).to(torch.uint8)
    return codes[:, ::2] | codes[:, 1::2] << 4, scale


def widened(codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """The matrix that they stand for."""
    if codes.is_cuda:
        return _widened_on_gpu(codes, scale, dtype)
    if codes.dtype == torch.uint8:
        both = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(1).long()
        numbers = _levels("cpu")[both]
    else:
        numbers = codes.float()
    rows, groups = scale.shape
    return (numbers.view(rows, groups, -1) * scale[..., None]).view(rows, -1).to(dtype)


def _widened_on_gpu(codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    from freerun.models.quantised_kernel import widen_kernel  # needs Triton

    rows, groups = scale.shape
    packed = codes.dtype == torch.uint8
    width = codes.shape[1] * (2 if packed else 1)
    out = torch.empty(rows, width, dtype=dtype, device=codes.device)
    levels = _levels(str(codes.device)) if packed else scale
    widen_kernel[(-(-out.numel() // _WIDTH),)](
        codes, scale, levels, out, out.numel(), width // groups, PACKED=packed, WIDTH=_WIDTH, num_warps=4
    )
    return out


def _few_rows_on_gpu(x: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    """Multiplies as few rows as a step of decoding has. It rounds what it multiplies with as `widened` does."""
    from freerun.models.quantised_kernel import few_rows_kernel

    packed, outs, (rows, width) = codes.dtype == torch.uint8, len(codes), x.shape
    out = torch.empty(rows, outs, dtype=x.dtype, device=x.device)
    levels = _levels(str(codes.device)) if packed else scale
    padded = max(16, 1 << (rows - 1).bit_length())
    few_rows_kernel[(-(-outs // _OUTS),)](
        x, codes, scale, levels, out, rows, outs, WIDTH=width, GROUP=width // scale.shape[1],
        PACKED=packed, R=padded, N=_OUTS, K=128, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out


@lru_cache
def _levels(device: str) -> Tensor:
    """The sixteen, from -1 to 1: quantiles of a normal distribution, eight above zero and seven below, zero itself."""
    least = 0.5 * (1 / 32 + 1 / 30)
    above = torch.special.ndtri(torch.linspace(0.5, 1 - least, 9, dtype=torch.float64))[1:]
    below = torch.special.ndtri(torch.linspace(least, 0.5, 8, dtype=torch.float64))[:-1]
    levels = torch.cat((below / -below[0], torch.zeros(1, dtype=torch.float64), above / above[-1]))
    return levels.float().to(device)


@torch.library.custom_op("freerun::quantised_product", mutates_args=())
def _product(x: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    if x.is_cuda and x.dtype == torch.bfloat16 and x.dim() == 2 and len(x) <= _FEW_ROWS:
        return _few_rows_on_gpu(x.contiguous(), codes, scale)
    return F.linear(x, widened(codes, scale, x.dtype))


@_product.register_fake
def _(x: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], len(codes))


@torch.library.custom_op("freerun::quantised_product_backward", mutates_args=())
def _product_backward(grad: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    return grad @ widened(codes, scale, grad.dtype)


@_product_backward.register_fake
def _(grad: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    return grad.new_empty(*grad.shape[:-1], codes.shape[1] * (2 if codes.dtype == torch.uint8 else 1))


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:])


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return _product_backward(grad, *ctx.saved_tensors), None, None


_product.register_autograd(_backward, setup_context=_keep)


def quantised_product(x: Tensor, codes: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = _product(x, codes, scale)
    return product if bias is None else product + bias
