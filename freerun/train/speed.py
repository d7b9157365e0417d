"""How long the phases of a step took, how fast it was, and against what the chip could do at best."""

import time
from collections.abc import Sequence

import torch

from freerun.models.shape import Shape
from freerun.train.packing import Packed

PEAK_TFLOPS = {"H200": 989.0, "H100": 989.0, "B200": 2250.0, "A100": 312.0, "L40S": 362.0, "4090": 165.0}
"""Dense bf16, by the vendors' data sheets."""


class Speed:
    """`sharing` ranks compute each micro-batch together."""

    def __init__(self, shape: Shape, device: torch.device, sharing: int = 1) -> None:
        self._shape, self._device, self._sharing = shape, device, sharing

    def of(self, tokens: int, micros: Sequence[Packed], phases: Sequence[tuple[str, float, float]]) -> dict[str, float]:
        """Tokens a second over the entire step, prompts included; on a GPU also each one's arithmetic, by what this
        rank computed: a prefix that samples share counts once, and of experts only those that a token goes through."""
        took_s = phases[-1][2] - phases[0][1]
        rates = {"tokens_per_s": tokens / took_s}
        if self._device.type != "cuda":
            return rates
        computed = sum(len(micro.tokens_T) for micro in micros)
        attention = sum(self._attention(micro) for micro in micros)
        tflops = (6.0 * self._shape.active_parameters * computed + attention) / self._sharing / took_s / 1e12
        name = torch.cuda.get_device_name(self._device)
        peak = next((peak for chip, peak in PEAK_TFLOPS.items() if chip in name), None)
        return rates | {"tflops": tflops} | ({"mfu": tflops / peak} if peak else {})

    def _attention(self, micro: Packed) -> float:
        """Causal, forward and backward: 6 · length² a head and dimension, less that of a prefix."""
        before = [sum(map(len, prefix)) for prefix in micro.prefixes]
        squares = sum((own + skip) ** 2 - skip**2 for own, skip in zip(micro.lengths, before, strict=True))
        return 6.0 * self._shape.layers * self._shape.heads * self._shape.head_dim * squares


class Phases:
    """When each phase of a step began and ended, one after another."""

    def __init__(self) -> None:
        self._start_s = time.monotonic()
        self.ended: list[tuple[str, float, float]] = []

    def end(self, name: str) -> None:
        now_s = time.monotonic()
        self.ended.append((name, self._start_s, now_s))
        self._start_s = now_s
