"""The forward pass of an engine whose layers' large matrices are of 8 bits. The kernel before each of these products
also rounds what goes into it.

`models/fp8.py` is what it must equal, to rounding.
"""

import torch
from torch import Tensor
from triton import next_power_of_2

from freerun.engines.embedded import kernels
from freerun.engines.embedded.experts import RouteNotes
from freerun.engines.embedded.fused import DeviceAttention, FusedDecoder, add_norm
from freerun.models.fp8 import CODE, Fp8Linear, Rounded, is_fp8
from freerun.models.own import Layer, OwnDecoder


def fused(decoder: OwnDecoder) -> FusedDecoder:
    return Fp8Decoder(decoder) if is_fp8(decoder) else FusedDecoder(decoder)


class Fp8Decoder(FusedDecoder):
    def through(self, residual: Tensor, attend: DeviceAttention, notes: RouteNotes | None = None) -> Tensor:
        delta: Tensor | None = None
        for layer in self._decoder.layers:
            assert isinstance(layer, Layer)
            qkv, gate_up, down = _narrow(layer.qkv), _narrow(layer.gate_up), _narrow(layer.down)
            read = attend(layer, qkv.multiply(add_norm_rounded(residual, delta, layer.attention_norm)))
            delta = layer.out(read)[None]
            gated = silu_mul_rounded(gate_up.multiply(add_norm_rounded(residual, delta, layer.mlp_norm)))
            delta = down.multiply_in_parts(gated)
        return add_norm(residual, None if delta is None else delta.sum(0), self._decoder.norm)


def _narrow(matrix: torch.nn.Linear) -> Fp8Linear:
    assert isinstance(matrix, Fp8Linear)
    return matrix


def add_norm_rounded(residual: Tensor, delta: Tensor | None, norm: torch.nn.RMSNorm) -> Rounded:
    """residual += delta, the sum of its parts, in place; and its norm, rounded."""
    rows, width = residual.shape
    out = _empty(rows, width, residual)
    kernels.add_norm_rounded_kernel[(rows,)](
        residual, residual if delta is None else delta, norm.weight, *out, norm.eps, rows, width,
        PARTS=0 if delta is None else len(delta), WIDTH=next_power_of_2(width), num_warps=4,
    )  # fmt: skip
    return out


def silu_mul_rounded(gate_up: Tensor) -> Rounded:
    rows, width = len(gate_up), gate_up.shape[1] // 2
    first = next_power_of_2(width + 1) // 2
    out, rest = _empty(rows, width, gate_up), max(next_power_of_2(width - first), 16)
    warps = 16 if first >= 8192 else 8 if first >= 2048 else 4
    kernels.silu_mul_rounded_kernel[(rows,)](gate_up, *out, width, FIRST=first, REST=rest, num_warps=warps)
    return out


def _empty(rows: int, width: int, like: Tensor) -> Rounded:
    codes = torch.empty(rows, width, dtype=CODE, device=like.device)
    return Rounded(codes, torch.empty(rows, dtype=torch.float32, device=like.device))
