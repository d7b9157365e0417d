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
from freerun.models.fp8_tiling import Tilings
from freerun.models.shape import refuse_fp8

CODE = torch.float8_e4m3fn
_LARGEST, _LEAST = 448.0, 1e-12
"""As in `fp8_kernels.py`."""
_CAPABLE = 8, 9
"""GPUs from here on multiply in FP8."""
_LARGE = "qkv", "gate_up", "down"
_ADDED = "down"
"""Whose product is added to something, and so may be in parts."""


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

    def __init__(self, base: nn.Linear, tilings: Tilings) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.bias = base.in_features, base.out_features, base.bias
        self.dtype = base.weight.dtype
        """What comes out is in, as what goes in is."""
        codes, scales = rounded(base.weight.detach())
        self.weight = nn.Parameter(codes, requires_grad=False)
        self.register_buffer("scales", scales, persistent=False)
        self._tilings = tilings

    def forward(self, x: Tensor) -> Tensor:
        return self.multiply(rounded(x))

    def take(self, weight: Tensor) -> None:
        """Be that weight from now on, in the memory that this one has."""
        _round_into(weight, Rounded(self.weight.data, self.scales))

    def multiply(self, x: Rounded) -> Tensor:
        if not x.codes.is_cuda:
            scaled = nn.functional.linear(x.codes.float(), self.weight.float()) * x.scales[:, None] * self.scales
            return (scaled if self.bias is None else scaled + self.bias.float()).to(self.dtype)
        from freerun.models.fp8_gpu import product  # needs Triton

        return product(self, x, self._tilings.whole(len(x.codes), self.out_features, self.in_features))[0]

    def multiply_in_parts(self, x: Rounded) -> Tensor:
        """On a GPU. What comes out is the sum of these, the fastest number of them: parts × rows × outputs."""
        from freerun.models.fp8_gpu import product

        return product(self, x, self._tilings.in_parts(len(x.codes), self.out_features, self.in_features))


def rounded(x: Tensor) -> Rounded:
    """Rows as codes, each row with the scale by which its largest number is the largest code."""
    codes = torch.empty(x.shape, dtype=CODE, device=x.device)
    found = Rounded(codes, torch.empty(len(x), dtype=torch.float32, device=x.device))
    _round_into(x, found)
    return found


def _round_into(x: Tensor, target: Rounded) -> None:
    if x.is_cuda:
        from freerun.models.fp8_gpu import round_into

        round_into(x, target)
        return
    top = x.float().abs().amax(-1, keepdim=True).clamp_min(_LEAST)
    target.codes.copy_((x.float() * (_LARGEST / top)).to(CODE))
    target.scales.copy_(top[:, 0] / _LARGEST)


def round_layers(decoder: Decoder) -> None:
    """Round the large matrices of all layers, in place. The attention's output has too few numbers to be worth rounding
    what goes into it."""
    refuse_fp8(decoder.shape)
    weight, tilings = decoder.embed.weight, Tilings()
    if weight.is_cuda and torch.cuda.get_device_capability(weight.device) < _CAPABLE:
        raise ConfigError(
            f"engine.weights=fp8 needs a GPU that multiplies in FP8, and {torch.cuda.get_device_name()} does not: "
            "leave it at same"
        )
    for layer in decoder.layers:
        for name in _LARGE:
            base = getattr(layer, name)
            assert isinstance(base, nn.Linear)
            setattr(layer, name, Fp8Linear(base, tilings))
    if weight.is_cuda:
        _choose_tilings(decoder, tilings)
        torch.cuda.empty_cache()  # what the wide ones had is for the cache


def _choose_tilings(decoder: Decoder, tilings: Tilings) -> None:
    from freerun.models.fp8_gpu import choose_tilings

    for name in _LARGE:
        alike = [layer for path, layer in fp8_layers(decoder) if path.endswith(name)]
        choose_tilings(alike, name == _ADDED, tilings)


def fp8_layers(decoder: Decoder) -> Iterator[tuple[str, Fp8Linear]]:
    return ((name, module) for name, module in decoder.named_modules() if isinstance(module, Fp8Linear))


def is_fp8(decoder: Decoder) -> bool:
    return any(True for _ in fp8_layers(decoder))
