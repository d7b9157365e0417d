"""A decode step of a few rows: a layer is five kernels, each of which may begin while the one before it still runs.

With many rows, or wide layers, the products take the time, and cuBLAS's are the fastest; with few rows of narrow
layers, starting kernels does. What both compute is the same, roundings included.
"""

from dataclasses import dataclass
from enum import Enum, auto

import torch
from torch import Tensor
from triton import next_power_of_2

from freerun.engines.embedded import product_kernels as kernels
from freerun.engines.embedded.fused import DeviceAttention, add_norm, precision
from freerun.models.adapter import is_adapted
from freerun.models.fp8 import is_fp8
from freerun.models.own import Layer, OwnDecoder
from freerun.models.rope import strength

MOST_TOKENS = 16
_NARROW, _NARROWEST = 40 * 2**20, 16 * 2**20
"""Bytes of a layer's weights, up to which this is faster on an H200, and up to which kernels should overlap: what is
fetched early takes the memory from the kernel before."""
_TILE_ADD = 16
"""Outputs of one program, where they are added to the residual stream: it has as many parts."""


class Pays(Enum):
    """Whether this is the faster way, for few rows."""

    NOT = auto()
    IN_TURN = auto()
    OVERLAPPING = auto()


def pays(decoder: OwnDecoder) -> Pays:
    if decoder.shape.experts or is_adapted(decoder) or is_fp8(decoder):
        return Pays.NOT  # these kernels know one network for all tokens, and a layer's wide weights alone
    (layer, *_) = decoder.layers
    size = sum(parameter.nbytes for parameter in layer.parameters())
    return Pays.OVERLAPPING if size <= _NARROWEST else Pays.IN_TURN if size <= _NARROW else Pays.NOT


@dataclass(frozen=True, slots=True)
class Begun:
    """Tokens on their way through the layers: the residual stream, and the sums of its squares by part."""

    residual: Tensor
    squares: Tensor
    rotary: tuple[Tensor, Tensor]
    """Cosines and sines of each token's angles, once for all layers."""


def begin(decoder: OwnDecoder, inv_freq: Tensor, tokens_T: Tensor, positions_R: Tensor) -> Begun:
    """Tokens of rows, a row's one behind the other from its position on."""
    count, width, half = len(tokens_T), decoder.shape.hidden, len(inv_freq)

    def floats(*size: int) -> Tensor:
        return torch.empty(size, dtype=torch.float32, device=tokens_T.device)

    residual, squares = floats(count, width), floats(-(-width // _TILE_ADD), count)
    cosines, sines = floats(count, half), floats(count, half)
    kernels.begin_kernel[(count,)](
        tokens_T, positions_R, decoder.embed.weight, inv_freq, residual, squares, cosines, sines, width,
        strength(decoder.shape),
        WIDTH=next_power_of_2(width), HALF=half, HALVES=next_power_of_2(half), TOKENS=count // len(positions_R),
    )  # fmt: skip
    return Begun(residual, squares, (cosines, sines))


def forward(decoder: OwnDecoder, begun: Begun, attend: DeviceAttention, overlap: bool) -> Tensor:
    """Hidden states, normed."""
    products = _Products(begun, overlap)
    for layer in decoder.layers:
        assert isinstance(layer, Layer)
        products.add(attend(layer, products.normed(layer.attention_norm, layer.qkv)), layer.out)
        products.add(products.normed(layer.mlp_norm, layer.gate_up, gated=True), layer.down)
    return add_norm(begun.residual, None, decoder.norm)


class _Products:
    """Multiplies the residual stream by weights, and adds products to it. Tilings are the fastest of ten on an H200."""

    def __init__(self, begun: Begun, overlap: bool) -> None:
        self._begun, self._overlap = begun, overlap
        self._parts = 1
        """That the newest sums of squares are in."""

    def normed(self, norm: torch.nn.RMSNorm, linear: torch.nn.Linear, gated: bool = False) -> Tensor:
        residual = self._begun.residual
        rows, inputs = residual.shape
        outputs = linear.out_features // (2 if gated else 1)
        out = torch.empty(rows, outputs, dtype=linear.weight.dtype, device=residual.device)
        tiling = (32, 256, 4, 3) if gated and inputs % 256 == 0 else (32, 64, 4, 5)
        self._launch(residual, norm, linear, out, tiling, gated)
        return out

    def add(self, x: Tensor, linear: torch.nn.Linear) -> None:
        tiling = (_TILE_ADD, 256, 4, 4) if linear.in_features >= 1024 else (_TILE_ADD, 128, 4, 5)
        self._launch(x, None, linear, self._begun.residual, tiling)
        self._parts = len(self._begun.squares)

    def _launch(
        self,
        x: Tensor,
        norm: torch.nn.RMSNorm | None,
        linear: torch.nn.Linear,
        out: Tensor,
        tiling: tuple[int, int, int, int],
        gated: bool = False,
    ) -> None:
        """`tiling`: outputs and inputs at a time, warps and stages."""
        weight, squares, (rows, inputs), outputs = linear.weight, self._begun.squares, x.shape, out.shape[1]
        tile, step, warps, stages = tiling
        if weight.dtype == torch.float32:
            step, stages = 64, 2
        height = 16 if rows <= 16 else 32
        kernels.product_kernel[(-(-rows // height), -(-outputs // tile))](
            x, squares, weight if norm is None else norm.weight, weight,
            weight if linear.bias is None else linear.bias, out, squares,
            0.0 if norm is None else norm.eps, rows, self._parts, inputs, outputs,
            NORM=norm is not None, PARTS=max(2, next_power_of_2(self._parts)), GATED=gated, ADD=norm is None,
            BIAS=linear.bias is not None, M=height, BN=tile, BK=step, EVEN=inputs % step == 0,
            OVERLAP=self._overlap, FETCH=self._overlap and weight.dtype != torch.float32, PRECISION=precision(weight),
            num_warps=warps, num_stages=stages, launch_pdl=self._overlap,
        )  # fmt: skip
