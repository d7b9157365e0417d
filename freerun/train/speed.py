"""How long the phases of a step took, how fast it was, and against what the chip could do at best."""

import time
from collections.abc import Sequence, Sized

import torch

from freerun.models.shape import Shape

PEAK_TFLOPS = {"H200": 989.0, "H100": 989.0, "B200": 2250.0, "A100": 312.0, "L40S": 362.0, "4090": 165.0}
"""Dense bf16, by the vendors' data sheets."""


class Speed:
    def __init__(self, shape: Shape, device: torch.device, ranks: int) -> None:
        self._shape, self._device, self._ranks = shape, device, ranks

    def of(
        self, sequences: Sequence[Sized], computed: int, phases: Sequence[tuple[str, float, float]]
    ) -> dict[str, float]:
        """Tokens a second over the entire step, prompts included; on a GPU also each one's arithmetic. `computed` is
        how many tokens this rank computed: a prompt that answers share counts once."""
        lengths = [len(tokens) for tokens in sequences]
        took_s = phases[-1][2] - phases[0][1]
        rates = {"tokens_per_s": sum(lengths) / took_s}
        if self._device.type != "cuda":
            return rates
        tflops = (6.0 * self._shape.num_parameters * computed + self._attention(lengths)) / took_s / 1e12
        name = torch.cuda.get_device_name(self._device)
        peak = next((peak for chip, peak in PEAK_TFLOPS.items() if chip in name), None)
        return rates | {"tflops": tflops} | ({"mfu": tflops / peak} if peak else {})

    def _attention(self, lengths: Sequence[int]) -> float:
        """Causal, forward and backward: 6 · length² a head and dimension. Each rank does its share."""
        shape = self._shape
        return 6.0 * shape.layers * shape.heads * shape.head_dim * sum(length**2 for length in lengths) / self._ranks


class Phases:
    """When each phase of a step began and ended, one after another."""

    def __init__(self) -> None:
        self._start_s = time.monotonic()
        self.ended: list[tuple[str, float, float]] = []

    def end(self, name: str) -> None:
        now_s = time.monotonic()
        self.ended.append((name, self._start_s, now_s))
        self._start_s = now_s
