"""Corrections for tokens that another policy sampled than the one that the step starts from.

With ρ_t = π_proximal / π_behavior, a constant, a correction gives each token a weight for its loss, or masks it:

    token:      weight min(ρ_t, cap)                                             truncated importance sampling
    sequence:   weight min(Π ρ over the token's sequence, cap)                   the same for entire answers
    icepop:     weight ρ_t where low ≤ ρ_t ≤ high, else masked                   IcePop
    geometric:  weight 1 where low ≤ (Π ρ)^(1/length) ≤ high, else the entire sequence is masked
    distance:   weight 1, but masked where ρ_t > 1 + most and Â_t > 0 (not with side: down), or ρ_t < 1 / (1 + most)
                and Â_t < 0

`token` is what decoupled PPO needs, and TIS (Yao et al. 2025, "Your efficient RL framework secretly brings you
off-policy RL training"), there mostly with a cap of 2. `sequence` has the smaller bias, but over long answers its
weights are all near zero or at the cap. `icepop` is by Ring's team (Ling Team 2025, "Every step evolves"; 0.5 to 5).
`geometric` is prime-rl's and verl's; verl's range of 1 ± 0.001 is for a fresh engine of another precision. Tokens
several versions old part by percents, so the default here, 0.8 to 1.25, drops only answers that went astray.

`distance` is ours. PPO's clip stops pushing a token that is already far from the policy that sampled it; decoupled PPO
measures from the proximal policy, which moves along, so it bounds how fast a token is pushed and not how far. Old data
then carries the weights away before its effect is seen. What does the harm is that tokens of failed answers are pushed
down without end: bounding pushes down alone (side: down) takes the collapse away, bounding pushes up alone does not
(docs/decisions/2026-11-19-which-objective.md).

Changed from the papers: a mask renormalises. What is left counts as if it were the entire minibatch:

    loss = Σ average · weight · loss_t / ( Σ average · kept / Σ average )

so that masking half of the tokens does not halve the learning rate. The sums are over the minibatch, not over its
micro-batches; the gradient is linear, so the share may divide it after the last micro-batch.

A correction is a section of the configuration: its fields are its options. Importable without torch.

Shapes: A trained tokens; S sequences.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import BeforeValidator, Discriminator, model_validator

from freerun.core.section import Section, knob
from freerun.train.objective import sequence_mean, sequence_sum

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True, frozen=True)
class Ratios:
    """What a correction goes by, of one micro-batch."""

    log_ratio_A: Tensor
    """log π_proximal − log π_behavior, without gradient."""
    advantages_A: Tensor
    sequence_A: Tensor
    """Which sequence of the micro-batch, 0 to S − 1, a token belongs to."""
    num_sequences: int


@dataclass(slots=True, frozen=True)
class Corrected:
    """`weight_A` multiplies the loss, and is zero where a token is not kept."""

    weight_A: Tensor
    kept_A: Tensor
    capped_A: Tensor
    """Where a weight would have been larger than the cap."""


class _Correction(Section):
    weighs: ClassVar[bool] = True
    """Whether it weighs by ρ; two such would count it twice."""

    @abstractmethod
    def apply(self, ratios: Ratios) -> Corrected: ...


class TokenWeight(_Correction):
    name: Literal["token"] = "token"
    cap: float = knob(5.0, "The largest weight of a token.", ge=1)

    def apply(self, ratios: Ratios) -> Corrected:
        return _capped(ratios.log_ratio_A.exp(), self.cap)


class SequenceWeight(_Correction):
    name: Literal["sequence"] = "sequence"
    cap: float = knob(5.0, "The largest weight of a sequence.", ge=1)

    def apply(self, ratios: Ratios) -> Corrected:
        log_weight_S = sequence_sum(ratios.log_ratio_A, ratios.sequence_A, ratios.num_sequences)
        return _capped(log_weight_S.exp()[ratios.sequence_A], self.cap)


class _Range(_Correction):
    @model_validator(mode="after")
    def _around_1(self) -> Self:
        low, high = (float(getattr(self, key)) for key in ("low", "high"))
        if not 0 <= low < 1 < high:
            raise ValueError(f"low and high should lie around 1, such as 0.5 and 2; they are {low:g} and {high:g}")
        return self


class IcePop(_Range):
    name: Literal["icepop"] = "icepop"
    low: float = knob(0.5, "Tokens of a smaller π_proximal / π_behavior are masked.")
    high: float = knob(5.0, "Tokens of a larger one are masked.")

    def apply(self, ratios: Ratios) -> Corrected:
        ratio_A = ratios.log_ratio_A.exp()
        return _masked(ratio_A, ratio_A, self.low, self.high)


class GeometricMask(_Range):
    weighs: ClassVar[bool] = False
    name: Literal["geometric"] = "geometric"
    low: float = knob(0.8, "Sequences of a smaller geometric mean of π_proximal / π_behavior are masked.")
    high: float = knob(1.25, "Sequences of a larger one are masked.")

    def apply(self, ratios: Ratios) -> Corrected:
        mean_S = sequence_mean(ratios.log_ratio_A, ratios.sequence_A, ratios.num_sequences).exp()
        mean_A = mean_S[ratios.sequence_A]
        return _masked(mean_A.new_ones(mean_A.shape), mean_A, self.low, self.high)


class DistanceMask(_Correction):
    weighs: ClassVar[bool] = False
    name: Literal["distance"] = "distance"
    most: float = knob(0.2, "Tokens that were pushed further than this from where they were sampled are masked.", gt=0)
    side: Literal["both", "down"] = knob("both", "Which pushes are bounded: up and down, or down alone.")

    def apply(self, ratios: Ratios) -> Corrected:
        ratio_A = ratios.log_ratio_A.exp()
        ones_A = ratio_A.new_ones(ratio_A.shape)
        up_A = ratio_A.where(ratios.advantages_A > 0, ones_A) if self.side == "both" else ones_A
        pushed_A = (1 / ratio_A).where(ratios.advantages_A < 0, up_A)
        return _masked(ones_A, pushed_A, 0.0, 1 + self.most)


AnyCorrection = TokenWeight | SequenceWeight | IcePop | GeometricMask | DistanceMask
CORRECTIONS: dict[str, type[Section]] = {kind.model_fields["name"].default: kind for kind in get_args(AnyCorrection)}


def _named(value: Any) -> Any:
    """`token` is short for `{name: token}`."""
    if isinstance(value, str):
        value = {"name": value}
    if isinstance(value, dict) and value.get("name") not in CORRECTIONS:
        known = ", ".join(CORRECTIONS)
        raise ValueError(f"there is no correction {value.get('name')!r}; choose among {known}")
    return value


Correction = Annotated[
    Annotated[AnyCorrection, Discriminator("name")],
    BeforeValidator(_named),
]
"""As in a configuration: `icepop`, or `{name: icepop, low: 0.5, high: 5}`."""


def correct(corrections: Sequence[AnyCorrection], ratios: Ratios) -> Corrected:
    """All of them together: weights are multiplied, and a token is kept when every correction keeps it."""
    weight_A = ratios.log_ratio_A.new_ones(ratios.log_ratio_A.shape)
    kept_A = weight_A.bool()
    capped_A = ~kept_A
    for correction in corrections:
        one = correction.apply(ratios)
        weight_A, kept_A, capped_A = weight_A * one.weight_A, kept_A & one.kept_A, capped_A | one.capped_A
    return Corrected(weight_A.where(kept_A, 0.0), kept_A, capped_A)


def _capped(ratio_A: Tensor, cap: float) -> Corrected:
    return Corrected(ratio_A.clamp(max=cap), ratio_A.new_ones(ratio_A.shape).bool(), ratio_A > cap)


def _masked(weight_A: Tensor, measure_A: Tensor, low: float, high: float) -> Corrected:
    kept_A = (measure_A >= low) & (measure_A <= high)
    return Corrected(weight_A, kept_A, kept_A.new_zeros(kept_A.shape))
