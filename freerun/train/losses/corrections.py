"""Corrections for tokens that another policy sampled than the one that the step starts from.

With ρ_t = π_proximal / π_behavior, a constant, a correction gives each token a weight for its loss, or masks it:

    token:      weight min(ρ_t, cap)                                             truncated importance sampling
    sequence:   weight min(Π ρ over the token's sequence, cap)                   the same for whole answers
    icepop:     weight ρ_t where α ≤ ρ_t ≤ β, else masked                        IcePop
    geometric:  weight 1 where low ≤ (Π ρ)^(1/length) ≤ high, else the whole sequence is masked
    distance:   weight 1, but masked where ρ_t > 1 + δ and Â_t > 0, or ρ_t < 1 / (1 + δ) and Â_t < 0

`token` is what decoupled PPO needs, and TIS (Yao et al. 2025, "Your efficient RL framework secretly brings you
off-policy RL training"), there mostly with a cap of 2. `sequence` has the smaller bias, but over long answers its
weights are all near zero or at the cap. `icepop` is by Ring's team (Ling Team 2025, "Every step evolves"; α 0.5, β 5).
`geometric` is prime-rl's and verl's; verl's range of 1 ± 0.001 is for a fresh engine of another precision. Tokens
several versions old part by percents, so the default here, 0.8 to 1.25, drops only answers that went astray.

`distance` is ours. PPO's clip stops pushing a token that is already far from the policy that sampled it; decoupled PPO
measures from the proximal policy, which moves along, so it bounds how fast a token is pushed and not how far. Old data
then carries the weights away before its effect is seen (docs/decisions/2026-11-15-staleness-sweep.md).

Changed from the papers: a mask renormalises. What is left counts as if it were the whole minibatch:

    loss = Σ average · weight · loss_t / ( Σ average · kept / Σ average )

so that masking half of the tokens does not halve the learning rate. The sums are over the minibatch, not over its
micro-batches; the gradient is linear, so the share may divide it after the last micro-batch.

Shapes: A trained tokens; S sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from freerun.train.losses.base import sequence_mean, sequence_sum


@dataclass(slots=True, frozen=True)
class Bounds:
    cap: float = 5.0
    """Largest weight, of `token` and of `sequence`."""
    icepop: tuple[float, float] = (0.5, 5.0)
    geometric: tuple[float, float] = (0.8, 1.25)
    distance: float = 0.2


@dataclass(slots=True, frozen=True)
class Correction:
    """`weight_A` multiplies the loss, and is zero where a token is not kept."""

    weight_A: Tensor
    kept_A: Tensor
    capped_A: Tensor
    """Where a weight would have been larger than the cap."""


@torch.no_grad()
def correct(
    names: Sequence[str],
    log_ratio_A: Tensor,
    advantages_A: Tensor,
    sequence_A: Tensor,
    num_sequences: int,
    bounds: Bounds,
) -> Correction:
    """All of `names` together: their weights multiplied, kept by every one. `log_ratio_A` is proximal − behavior."""
    weight_A = torch.ones_like(log_ratio_A)
    kept_A = torch.ones_like(log_ratio_A, dtype=torch.bool)
    capped_A = ~kept_A
    for name in names:
        one = _one(name, log_ratio_A, advantages_A, sequence_A, num_sequences, bounds)
        weight_A, kept_A, capped_A = weight_A * one.weight_A, kept_A & one.kept_A, capped_A | one.capped_A
    return Correction(weight_A.where(kept_A, 0.0), kept_A, capped_A)


def _one(
    name: str, log_ratio_A: Tensor, advantages_A: Tensor, sequence_A: Tensor, num_sequences: int, bounds: Bounds
) -> Correction:
    ratio_A = log_ratio_A.exp()
    if name == "token":
        return _truncated(ratio_A, bounds.cap)
    if name == "sequence":
        return _truncated(sequence_sum(log_ratio_A, sequence_A, num_sequences).exp()[sequence_A], bounds.cap)
    if name == "icepop":
        return _masked(ratio_A, ratio_A, bounds.icepop)
    if name == "geometric":
        mean_A = sequence_mean(log_ratio_A, sequence_A, num_sequences).exp()[sequence_A]
        return _masked(torch.ones_like(ratio_A), mean_A, bounds.geometric)
    if name == "distance":
        pushed_A = torch.where(advantages_A > 0, ratio_A, torch.where(advantages_A < 0, 1 / ratio_A, 1.0))
        return _masked(torch.ones_like(ratio_A), pushed_A, (0.0, 1 + bounds.distance))
    raise ValueError(f"there is no correction {name!r}")


def _truncated(ratio_A: Tensor, cap: float) -> Correction:
    everywhere = torch.ones_like(ratio_A, dtype=torch.bool)
    return Correction(ratio_A.clamp(max=cap), everywhere, ratio_A > cap)


def _masked(weight_A: Tensor, measure_A: Tensor, within: tuple[float, float]) -> Correction:
    low, high = within
    kept_A = (measure_A >= low) & (measure_A <= high)
    return Correction(weight_A, kept_A, torch.zeros_like(kept_A))
