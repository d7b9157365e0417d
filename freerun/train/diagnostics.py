"""What a step measured on the way: drift between the three policies, clipping, entropy, speed.

Sums are kept on the device, over micro-batches and then over ranks, and looked at once, at the end.

Shapes: A trained tokens.
"""

import math

import torch
from torch import Tensor

from freerun.core import Version
from freerun.core.nouns import NOT_SAMPLED
from freerun.train.before import Before
from freerun.train.corrections import Corrected
from freerun.train.objective import TokenLoss, Tokens
from freerun.train.packing import Packed
from freerun.train.ranks import Ranks
from freerun.train.routing import Routed

_OLDEST = 16
"""Tokens older than this are counted with those of this age."""


class Diagnostics:
    def __init__(self, version: Version, ranks: Ranks) -> None:
        self._version, self._ranks = version, ranks
        self._sums: dict[str, Tensor] = {}
        self._largest: dict[str, Tensor] = {}
        self._by_age: Tensor | None = None
        self._routed: Routed | None = None
        self.before = Before(ranks)
        self._optimizer_steps: list[tuple[float, float]] = []
        self._losses: list[float] = []

    @torch.no_grad()
    def micro_batch(self, tokens: Tokens, entropy_A: Tensor, loss: TokenLoss, correction: Corrected) -> None:
        self._add(
            tokens=torch.ones_like(entropy_A),
            entropy=entropy_A,
            signal_share=tokens.advantages_A != 0,
            clip_share=loss.clipped_A,
            behavior_capped_share=correction.capped_A,
            kept_share=correction.kept_A,
        )

    @torch.no_grad()
    def drift(self, micro: Packed, before_A: Tensor, cut_off_P: Tensor | None) -> None:
        """How far the weights before the step are from those that sampled the tokens, whatever the objective is; and
        how far what top-k and top-p left is from either (`cutoffs.py`)."""
        self.before.add(micro, before_A)
        log_ratio_A, staleness_A = before_A - micro.behavior_A, self._version - micro.versions_A
        ratio_A = log_ratio_A.exp()
        sampled_A = micro.versions_A != NOT_SAMPLED
        fresh_A = staleness_A == 0
        off_A = torch.where(fresh_A, log_ratio_A, 0.0)
        self._add(
            compared=torch.ones_like(ratio_A),
            fresh=fresh_A,
            behavior_ratio=ratio_A,
            behavior_ratio_squared=ratio_A.square(),
            behavior_kl=ratio_A - 1 - log_ratio_A,  # k3: never negative
            sampled=sampled_A,
            drift=torch.where(sampled_A, 0.5 * log_ratio_A.square(), 0.0),
            engine_mismatch=off_A.abs(),
            engine_mismatch_kl=off_A.exp() - 1 - off_A,
        )
        if cut_off_P is not None:
            self._add(probed=torch.ones_like(cut_off_P), cut_off=cut_off_P)
        self.largest(engine_mismatch_max=off_A.abs(), behavior_ratio_max=ratio_A)
        ages_2O = torch.zeros(2, _OLDEST + 1, device=ratio_A.device)
        age_A = staleness_A.clamp(0, _OLDEST)
        ages_2O[0].index_add_(0, age_A, torch.ones_like(ratio_A, dtype=torch.float32))
        ages_2O[1].index_add_(0, age_A, ratio_A.float())
        self._by_age = ages_2O if self._by_age is None else self._by_age + ages_2O

    def routed(self, routed: Routed) -> None:
        """Which experts the tokens of a micro-batch went through."""
        self._routed = Routed(*(a + b for a, b in zip(self._routed, routed, strict=True))) if self._routed else routed

    def add(self, **values: Tensor) -> None:
        """Means over trained tokens of whatever else was measured there."""
        self._add(**values)

    def largest(self, **values: Tensor) -> None:
        for name, value in values.items():
            top = value.max().float() if len(value) else torch.zeros((), device=value.device)
            self._largest[name] = torch.maximum(self._largest.get(name, top), top)

    @property
    def has_learned(self) -> bool:
        """The weights are no longer those before the step."""
        return bool(self._optimizer_steps)

    def minibatch(self, loss: float) -> None:
        """The loss that its gradient is of: over what the corrections kept, on all ranks."""
        self._losses.append(loss)

    def optimizer_step(self, grad_norm: float, lr: float) -> None:
        self._optimizer_steps.append((grad_norm, lr))

    def result(self) -> dict[str, float]:
        """Means over tokens; of drift (`drift.py`), over those whose log-probability before the step is known: of
        all, or of the first of several minibatches. `engine_mismatch` is over tokens that the very weights of this step
        sampled: there engine and trainer should agree to rounding, and whatever is left is a bug or low precision."""
        if not self._sums:
            return {"tokens": 0.0}
        names = list(self._sums)
        summed = self._ranks.sum(torch.stack([self._sums[name].double() for name in names])).tolist()
        sums = dict(zip(names, summed, strict=True))
        tops = self._ranks.max(torch.stack(list(self._largest.values()))).tolist()
        largest = dict(zip(self._largest, tops, strict=True))
        tokens, steps = sums.pop("tokens"), len(self._optimizer_steps)
        compared, fresh, squares = (sums.pop(name) for name in ("compared", "fresh", "behavior_ratio_squared"))
        off = {name: sums.pop(name) for name in ("engine_mismatch", "engine_mismatch_kl")}
        drift = {name: sums.pop(name) / compared for name in ("behavior_ratio", "behavior_kl")}
        drift["drift_cutoffs"] = sums.pop("cut_off", 0.0) / max(sums.pop("probed", 0.0), 1.0)
        drift["drift"] = sums.pop("drift") / max(sums.pop("sampled"), 1.0) + drift["drift_cutoffs"]
        means = {name: total / tokens for name, total in sums.items()} | drift
        means["effective_samples"] = means["behavior_ratio"] ** 2 / (squares / compared) if squares else 0.0
        if fresh:
            means |= {name: total / fresh for name, total in off.items()}
        else:
            largest.pop("engine_mismatch_max", None)
        if steps:
            means["grad_norm"] = sum(norm for norm, _ in self._optimizer_steps) / steps
            means["lr"] = self._optimizer_steps[-1][1]
        loss = sum(self._losses) / len(self._losses)
        return means | largest | self._ages() | self._experts() | {"loss": loss, "tokens": tokens}

    def _ages(self) -> dict[str, float]:
        """The mean ratio of the weights before the step to the behavior policy, by staleness."""
        assert self._by_age is not None
        counts, ratios = self._ranks.sum(self._by_age).tolist()
        return {f"ratio_at_age_{age}": ratios[age] / count for age, count in enumerate(counts) if count}

    def _experts(self) -> dict[str, float]:
        """How evenly tokens are spread over the experts of a layer, and whose choice that was."""
        if self._routed is None:
            return {}
        load_LE, *counts = self._routed
        shape, device = load_LE.shape, load_LE.device
        flat = torch.cat([load_LE.flatten(), torch.stack(counts)]).double()
        summed = self._ranks.sum(flat.to(device))
        share_LE = summed[: load_LE.numel()].view(shape)
        choices, (replayed, compared, different) = share_LE.sum().item(), summed[-3:].tolist()
        share_LE = share_LE / share_LE.sum(1, keepdim=True).clamp_min(1.0)
        entropy_L = -torch.special.xlogy(share_LE, share_LE).sum(1) / math.log(max(shape[1], 2))
        figures = {
            "expert_load_max": share_LE.max().item() * shape[1],
            "expert_entropy": entropy_L.mean().item(),
            "expert_unused_share": (share_LE == 0).double().mean().item(),
            "router_replayed_share": replayed / max(choices, 1.0),
        }
        return figures | ({"router_flips": different / compared} if compared else {})

    def _add(self, **values: Tensor) -> None:
        for name, value in values.items():
            total = value.detach().double().sum()
            self._sums[name] = self._sums[name] + total if name in self._sums else total
