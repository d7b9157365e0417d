"""Linear layers that multiply numbers of 8 bits, for an engine: half the bytes to read, and twice the arithmetic.

Both the weight and what comes in are codes in e4m3 times scales (`fp8_kernels.py`): a scale for each output of the
weight, and one for each token, which is found when the token comes. So what such a model samples from is another
distribution than that of the weights it was made of, and its log-probabilities are that distribution's.

On a GPU products run on the tensor cores for FP8. On a CPU the same codes are multiplied in float32, slowly: for tests.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from freerun.core import ConfigError
from freerun.models.decoder import Decoder
from freerun.models.fp8_tiling import tiling
from freerun.models.shape import refuse_fp8

CODE = torch.float8_e4m3fn
_LARGEST, _LEAST = 448.0, 1e-12
"""As in `fp8_kernels.py`."""
_CAPABLE = 8, 9
"""GPUs from here on multiply in FP8."""


class Rounded(NamedTuple):
    """Rows of codes, and a scale for each row."""

    codes: Tensor
    scales: Tensor

    @property
    def wide(self) -> Tensor:
        """What they stand for."""
        return self.codes.float() * self.scales[:, None]


class Fp8Linear(nn.Linear):
    """Its weight is codes, and `scales` has a scale for each of them that are one output's."""

    scales: Tensor

    def __init__(self, base: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.bias = base.in_features, base.out_features, base.bias
        self.dtype = base.weight.dtype
        """What comes out is in, as what goes in is."""
        codes, scales = rounded(base.weight.detach())
        self.weight = nn.Parameter(codes, requires_grad=False)
        self.register_buffer("scales", scales, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.multiply(rounded(x))

    def take(self, weight: Tensor) -> None:
        """Be that weight from now on, in the memory that this one has."""
        _round_into(weight, Rounded(self.weight.data, self.scales))

    def multiply(self, x: Rounded) -> Tensor:
        return self._product(x, 1)[0]

    def multiply_in_parts(self, x: Rounded) -> Tensor:
        """What comes out is the sum of these, the fastest number of them: parts × rows × outputs."""
        return self._product(x, tiling(len(x.codes), self.out_features, self.in_features).split)

    def _product(self, x: Rounded, parts: int) -> Tensor:
        if not x.codes.is_cuda:
            product = nn.functional.linear(x.codes.float(), self.weight.float())
            scaled = product * x.scales[:, None] * self.scales
            return (scaled if self.bias is None else scaled + self.bias.float()).to(self.dtype)[None]
        from freerun.models.fp8_kernels import product_kernel  # needs Triton

        (rows, width), outs = x.codes.shape, self.out_features
        how = tiling(rows, outs, width, parts)
        kind = self.dtype if parts == 1 else torch.float32
        out = torch.empty(parts, rows, outs, dtype=kind, device=x.codes.device)
        product_kernel[(-(-rows // how.rows), -(-outs // how.outs), parts)](
            x.codes, x.scales, self.weight, self.scales, self.scales if self.bias is None else self.bias, out,
            rows, width, outs, BIAS=self.bias is not None, M=how.rows, BN=how.outs, BK=how.ins,
            EVEN=width % how.ins == 0, SPLIT=parts, SWAP=how.swap, num_warps=how.warps, num_stages=how.stages,
        )  # fmt: skip
        return out


def rounded(x: Tensor) -> Rounded:
    """Rows as codes, each row with the scale by which its largest number is the largest code."""
    codes = torch.empty(x.shape, dtype=CODE, device=x.device)
    found = Rounded(codes, torch.empty(len(x), dtype=torch.float32, device=x.device))
    _round_into(x, found)
    return found


def _round_into(x: Tensor, target: Rounded) -> None:
    if x.is_cuda:
        from freerun.models.fp8_kernels import round_kernel  # needs Triton

        rows, width = x.shape
        wide = 1 << (width - 1).bit_length()
        warps = 4 if wide <= 4096 else 8
        round_kernel[(rows,)](x.contiguous(), target.codes, target.scales, width, WIDTH=wide, num_warps=warps)
        return
    top = x.float().abs().amax(-1, keepdim=True).clamp_min(_LEAST)
    target.codes.copy_((x.float() * (_LARGEST / top)).to(CODE))
    target.scales.copy_(top[:, 0] / _LARGEST)


def round_layers(decoder: Decoder) -> None:
    """In place: the matrices of all layers. Embedding, head and norms stay as they are."""
    refuse_fp8(decoder.shape)
    weight = decoder.embed.weight
    if weight.is_cuda and torch.cuda.get_device_capability(weight.device) < _CAPABLE:
        raise ConfigError(
            f"engine.weights=fp8 needs a GPU that multiplies in FP8, and {torch.cuda.get_device_name()} does not: "
            "leave it at same"
        )
    for name in list(decoder.adaptable):
        holder, _, target = name.rpartition(".")
        base = decoder.get_submodule(name)
        assert isinstance(base, nn.Linear)
        setattr(decoder.get_submodule(holder), target, Fp8Linear(base))
    if weight.is_cuda:
        torch.cuda.empty_cache()  # what the wide ones had is for the cache


def fp8_layers(decoder: Decoder) -> Iterator[tuple[str, Fp8Linear]]:
    return ((name, module) for name, module in decoder.named_modules() if isinstance(module, Fp8Linear))


def is_fp8(decoder: Decoder) -> bool:
    return any(True for _ in fp8_layers(decoder))
