"""What a step measured on the way: drift between the three policies, clipping, entropy."""

import torch
from torch import Tensor

from freerun.core import Version
from freerun.train.losses.decoupled_ppo import TokenLoss
from freerun.train.packing import Packed


class Diagnostics:
    """Sums over micro-batches; `result` turns them into means over trained tokens."""

    def __init__(self, version: Version) -> None:
        self._version = version
        self._sums: dict[str, float] = {}
        self._tokens = 0
        self._fresh = 0
        self._mismatch_max = 0.0
        self._optimizer_steps: list[tuple[float, float]] = []

    @torch.no_grad()
    def micro_batch(self, micro: Packed, proximal_A: Tensor, entropy_A: Tensor, loss: TokenLoss, mean: Tensor) -> None:
        log_ratio_A = proximal_A - micro.behavior_logprobs_A
        self._add("loss", mean)
        self._add("entropy", entropy_A.sum())
        self._add("clip_share", loss.clipped)
        self._add("behavior_capped_share", loss.capped)
        self._add("behavior_ratio", log_ratio_A.exp().sum())
        self._add("behavior_kl", (log_ratio_A.exp() - 1 - log_ratio_A).sum())  # k3: never negative
        self._tokens += micro.num_trained
        fresh = micro.versions_A == self._version
        if fresh.any():
            difference = log_ratio_A[fresh].abs()
            self._fresh += int(fresh.sum())
            self._add("engine_mismatch", difference.sum())
            self._mismatch_max = max(self._mismatch_max, difference.max().item())

    def optimizer_step(self, grad_norm: float, lr: float) -> None:
        self._optimizer_steps.append((grad_norm, lr))

    def result(self) -> dict[str, float]:
        """Means over tokens. `engine_mismatch` is over tokens that the very weights of this step sampled: there engine
        and trainer should agree to rounding, and whatever is left is a bug or low precision."""
        per_token = {name: total / max(self._tokens, 1) for name, total in self._sums.items()}
        steps = len(self._optimizer_steps)
        per_token["loss"] = self._sums.get("loss", 0.0) / max(steps, 1)
        if self._fresh:
            per_token["engine_mismatch"] = self._sums["engine_mismatch"] / self._fresh
            per_token["engine_mismatch_max"] = self._mismatch_max
        if steps:
            per_token["grad_norm"] = sum(norm for norm, _ in self._optimizer_steps) / steps
            per_token["lr"] = self._optimizer_steps[-1][1]
        return per_token | {"tokens": float(self._tokens)}

    def _add(self, name: str, value: Tensor) -> None:
        self._sums[name] = self._sums.get(name, 0.0) + value.item()
