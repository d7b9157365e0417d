"""How fast a step was, and against what the chip could do at best."""

from collections.abc import Sequence

import torch

from freerun.models.shape import Shape

PEAK_TFLOPS = {"H200": 989.0, "H100": 989.0, "B200": 2250.0, "A100": 312.0, "L40S": 362.0, "4090": 165.0}
"""Dense bf16, by the vendors' data sheets."""


class Speed:
    def __init__(self, shape: Shape, device: torch.device, ranks: int) -> None:
        self._shape, self._device, self._ranks = shape, device, ranks

    def of(self, sequences: Sequence[Sequence[int]], phases: Sequence[tuple[str, float, float]]) -> dict[str, float]:
        """Tokens a second of the whole step, prompts included; on a GPU also the arithmetic, each GPU's."""
        lengths = [len(tokens) for tokens in sequences]
        took_s = phases[-1][2] - phases[0][1]
        rates = {"tokens_per_s": sum(lengths) / took_s}
        if self._device.type != "cuda":
            return rates
        tflops = training_flops(self._shape, lengths) / took_s / self._ranks / 1e12
        name = torch.cuda.get_device_name(self._device)
        peak = next((peak for chip, peak in PEAK_TFLOPS.items() if chip in name), None)
        return rates | {"tflops": tflops} | ({"mfu": tflops / peak} if peak else {})


def training_flops(shape: Shape, lengths: Sequence[int]) -> float:
    """Forward and backward: 6 a parameter and token, and the causal attention's 6 · length² a head and dimension."""
    attention = 6 * shape.layers * shape.heads * shape.head_dim * sum(length**2 for length in lengths)
    return 6.0 * shape.num_parameters * sum(lengths) + attention
