"""Triton kernels for what is between the grouped products of a mixture of experts, on a GPU. `experts.py` has the plain
versions, which these must equal to rounding.

Shapes: S pairs of a token and an expert; T tokens, k pairs of each; C the model's width, F that of an expert.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_WIDEST = 1024


def gated(inner_S2F: Tensor, weights_S: Tensor) -> Tensor:
    pairs, width = len(inner_S2F), inner_S2F.shape[1] // 2
    out = torch.empty(pairs, width, dtype=inner_S2F.dtype, device=inner_S2F.device)
    block = _block(width)
    _gated_kernel[(pairs, triton.cdiv(width, block))](inner_S2F, weights_S, out, width, WIDTH=block, num_warps=4)
    return out


def gated_backward(inner_S2F: Tensor, weights_S: Tensor, grad_SF: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    pairs, width = grad_SF.shape
    grad_inner, grad_weights = torch.empty_like(inner_S2F), torch.empty_like(weights_S)
    middle = torch.empty_like(grad_SF)
    _gated_backward_kernel[(pairs,)](
        inner_S2F, weights_S, grad_SF, grad_inner, grad_weights, middle, width, WIDTH=_block(width), num_warps=4
    )
    return grad_inner, grad_weights, middle


def summed(rows_SC: Tensor, place_Tk: Tensor, residual_TC: Tensor | None = None) -> Tensor:
    tokens, per_token = place_Tk.shape
    width = rows_SC.shape[1]
    out = torch.empty(tokens, width, dtype=torch.float32, device=rows_SC.device)
    block = _block(width)
    _summed_kernel[(tokens, triton.cdiv(width, block))](
        rows_SC, place_Tk, out if residual_TC is None else residual_TC, out, width,
        K=per_token, ADDS=residual_TC is not None, WIDTH=block, num_warps=4,
    )  # fmt: skip
    return out


def _block(width: int) -> int:
    return min(int(triton.next_power_of_2(width)), _WIDEST)


@triton.jit
def _gated_kernel(inner, weights, out, width, WIDTH: tl.constexpr):
    """out = silu(gate) · up · weight, for gate and up side by side."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < width
    gate = tl.load(inner + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(inner + row * 2 * width + width + column, mask=inside, other=0.0).to(tl.float32)
    made = gate * tl.sigmoid(gate) * up * tl.load(weights + row).to(tl.float32)
    tl.store(out + row * width + column, made.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _gated_backward_kernel(
    inner, weights, grads, grad_inner, grad_weights, middle, width, WIDTH: tl.constexpr
):  # fmt: skip
    """One program a pair: what it made, once more, and the gradients of gate, up and weight."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, WIDTH)
    weight = tl.load(weights + row).to(tl.float32)
    total = tl.zeros([WIDTH], tl.float32)
    for start in range(0, width, WIDTH):
        column = start + lane
        inside = column < width
        gate = tl.load(inner + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(inner + row * 2 * width + width + column, mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(grads + row * width + column, mask=inside, other=0.0).to(tl.float32)
        sigmoid = tl.sigmoid(gate)
        silu = gate * sigmoid
        total += grad * silu * up
        grad_gate = grad * weight * up * sigmoid * (1.0 + gate * (1.0 - sigmoid))
        kind = grad_inner.dtype.element_ty
        tl.store(grad_inner + row * 2 * width + column, grad_gate.to(kind), mask=inside)
        tl.store(grad_inner + row * 2 * width + width + column, (grad * weight * silu).to(kind), mask=inside)
        tl.store(middle + row * width + column, (silu * up * weight).to(kind), mask=inside)
    tl.store(grad_weights + row, tl.sum(total, 0).to(grad_weights.dtype.element_ty))


@triton.jit
def _summed_kernel(
    rows, places, residual, out, width, K: tl.constexpr, ADDS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Adds up each token's pairs, wherever they are, in float32."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < width
    total = tl.zeros([WIDTH], tl.float32)
    for pair in tl.static_range(K):
        place = tl.load(places + token * K + pair).to(tl.int64)
        total += tl.load(rows + place * width + column, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        total += tl.load(residual + token * width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * width + column, total, mask=inside)
