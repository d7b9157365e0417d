"""Golden numbers: corrections for older tokens, the stand-ins for the proximal policy, estimates of the KL."""

import random
from collections.abc import Sequence
from math import exp, log, prod

import pytest
import torch
from torch import Tensor

from freerun.train.average import sequence_weights
from freerun.train.config import TrainConfig
from freerun.train.corrections import (
    AnyCorrection,
    Corrected,
    DistanceMask,
    GeometricMask,
    IcePop,
    Ratios,
    SequenceWeight,
    TokenWeight,
    correct,
)
from freerun.train.kl import kl_estimate
from freerun.train.proximal import proximal_logprobs


def named(*names: str) -> tuple[AnyCorrection, ...]:
    """Corrections with their default options, as a configuration makes them."""
    return TrainConfig.model_validate({"corrections": names}).corrections


def corrected(corrections: Sequence[AnyCorrection], sequences: list[list[float]]) -> Corrected:
    """`sequences` are given by their tokens' ratios π_proximal / π_behavior."""
    log_ratio_A = torch.tensor([log(ratio) for ratios in sequences for ratio in ratios], dtype=torch.float64)
    sequence_A = torch.tensor([s for s, ratios in enumerate(sequences) for _ in ratios])
    return correct(corrections, Ratios(log_ratio_A, torch.ones_like(log_ratio_A), sequence_A, len(sequences)))


@pytest.mark.parametrize(
    ("name", "weights", "kept", "capped"),
    [
        ("token", [2, 0.5, 5, 0.1, 3, 3], [1, 1, 1, 1, 1, 1], [0, 0, 1, 0, 0, 0]),
        # products: 2 · 0.5 = 1, 8 · 0.1 = 0.8, 3 · 3 = 9 → 5
        ("sequence", [1, 1, 0.8, 0.8, 5, 5], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1]),
        # 8 and 0.1 lie outside of [0.5, 5]
        ("icepop", [2, 0.5, 0, 0, 3, 3], [1, 1, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0]),
        # geometric means: 1, sqrt 0.8 = 0.894, 3
        ("geometric", [1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0]),
    ],
)
def test_each_correction_by_hand(name: str, weights: list[float], kept: list[int], capped: list[int]) -> None:
    got = corrected(named(name), [[2, 0.5 + 1e-12], [8, 0.1], [3, 3]])
    assert got.weight_A.tolist() == pytest.approx(weights)
    assert got.kept_A.tolist() == [bool(k) for k in kept]
    assert got.capped_A.tolist() == [bool(c) for c in capped]


def test_distance_masks_what_is_already_far_where_it_is_pushed() -> None:
    ratios = torch.tensor([1.19, 1.21, 1.21, 0.84, 0.83, 0.83, 5.0], dtype=torch.float64)
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0, -1.0, 1.0, 0.0], dtype=torch.float64)
    micro = Ratios(ratios.log(), advantages, torch.zeros(7, dtype=torch.long), 1)
    got = correct(named("distance"), micro)
    assert got.kept_A.tolist() == [True, False, True, True, False, True, True]
    assert got.weight_A.tolist() == [1, 0, 1, 1, 0, 1, 1]
    both = correct(named("token", "distance"), micro)
    assert both.weight_A.tolist() == pytest.approx([1.19, 0, 1.21, 0.84, 0, 0.83, 5.0])


def test_distance_may_bound_pushes_down_alone() -> None:
    """The same tokens: those pushed up are kept, however far they are."""
    ratios = torch.tensor([1.19, 1.21, 1.21, 0.84, 0.83, 0.83, 5.0, 9.0], dtype=torch.float64)
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0, -1.0, 1.0, 0.0, 2.0], dtype=torch.float64)
    got = correct([DistanceMask(side="down")], Ratios(ratios.log(), advantages, torch.zeros(8, dtype=torch.long), 1))
    assert got.kept_A.tolist() == [True, True, True, True, False, True, True, True]
    assert got.weight_A.tolist() == [1, 1, 1, 1, 0, 1, 1, 1]


def test_options_are_those_asked_for() -> None:
    assert corrected([TokenWeight(cap=1.5)], [[2, 1.2]]).weight_A.tolist() == pytest.approx([1.5, 1.2])
    assert corrected([SequenceWeight(cap=1.5)], [[2, 1.2]]).weight_A.tolist() == pytest.approx([1.5, 1.5])
    assert corrected([IcePop(low=0.9, high=1.2)], [[0.8, 1.1, 1.3]]).kept_A.tolist() == [False, True, False]
    means = [[1.05], [1.005], [0.98]]
    assert corrected([GeometricMask(low=0.99, high=1.01)], means).kept_A.tolist() == [False, True, False]
    assert corrected([DistanceMask(most=0.5)], [[1.4, 1.6, 0.1]]).kept_A.tolist() == [True, False, True]


def test_corrections_multiply_and_mask_together() -> None:
    sequences = [[2.0, 0.4], [8.0, 0.1], [3.0, 3.0], [9.0, 0.1]]
    for names in (["token", "geometric"], ["geometric", "token"]):
        got = corrected(named(*names), sequences)
        assert got.weight_A.tolist() == pytest.approx([2, 0.4, 5, 0.1, 0, 0, 5, 0.1])
        assert got.kept_A.tolist() == [True] * 4 + [False] * 2 + [True] * 2
        assert got.capped_A.tolist() == [False, False, True, False, False, False, True, False]


def test_no_correction_leaves_everything() -> None:
    got = corrected([], [[2.0, 0.4], [8.0]])
    assert got.weight_A.tolist() == [1, 1, 1]
    assert got.kept_A.all()
    assert not got.capped_A.any()


def test_extreme_ratios_stay_finite_in_float32() -> None:
    """A product over a long sequence leaves float32 on either side."""
    sequence_A = torch.tensor([0] * 2000 + [1] * 2000)
    log_ratio_A = torch.cat([torch.full((2000,), 0.3), torch.full((2000,), -0.3)])
    for name, high, low in [("sequence", 5.0, 0.0), ("token", exp(0.3), exp(-0.3)), ("geometric", 0.0, 0.0)]:
        got = correct(named(name), Ratios(log_ratio_A, torch.ones_like(log_ratio_A), sequence_A, 2))
        assert got.weight_A[0].item() == pytest.approx(high)
        assert got.weight_A[-1].item() == pytest.approx(low)
    masked = correct(named("icepop"), Ratios(torch.tensor([200.0, -200.0]), torch.ones(2), torch.tensor([0, 0]), 1))
    assert masked.weight_A.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("names", [["icepop"], ["geometric"], ["token", "geometric"]])
def test_a_masked_minibatch_weighs_as_if_the_rest_were_all(names: list[str]) -> None:
    """Σ average · weight · loss / (Σ average · kept / Σ average), summed over micro-batches, is the mean over what is
    kept, written out over plain numbers."""
    dice = random.Random(5)
    sequences = [[exp(dice.gauss(0, 0.6)) for _ in range(dice.randrange(1, 9))] for _ in range(12)]
    losses = [[dice.gauss(0, 1) for _ in ratios] for ratios in sequences]
    kept = []
    for ratios, row in zip(sequences, losses, strict=True):
        mean = prod(ratios) ** (1 / len(ratios))
        for ratio, loss in zip(ratios, row, strict=True):
            if "icepop" in names and 0.5 <= ratio <= 5:
                kept.append(ratio * loss)
            if "geometric" in names and 0.8 <= mean <= 1.25:
                kept.append((min(ratio, 5.0) if "token" in names else 1.0) * loss)
    assert 0 < len(kept) < sum(map(len, sequences))

    for average, longest in (("token", 9), ("constant", 50)):
        weights = sequence_weights([len(ratios) for ratios in sequences], average, longest)
        gained = left = total = 0.0
        for start in range(0, len(sequences), 5):
            micro = slice(start, start + 5)
            got = corrected(named(*names), sequences[micro])
            average_A = per_token(weights[micro], sequences[micro])
            loss_A = torch.tensor([x for row in losses[micro] for x in row], dtype=torch.float64)
            gained += (average_A * got.weight_A * loss_A).sum().item()
            left += (average_A * got.kept_A).sum().item()
            total += average_A.sum().item()
        scale = 1.0 if average == "token" else sum(map(len, sequences)) / (len(sequences) * longest)
        assert gained / (left / total) == pytest.approx(scale * sum(kept) / len(kept), rel=1e-12)


def per_token(weights: list[float], sequences: list[list[float]]) -> Tensor:
    return torch.tensor([w for w, ratios in zip(weights, sequences, strict=True) for _ in ratios], dtype=torch.float64)


def test_what_stands_for_the_proximal_policy() -> None:
    policy_A = torch.tensor([-1.0, -1.0, -1.0, -1.0], dtype=torch.float64, requires_grad=True)
    behavior_A = torch.tensor([-2.0, -2.0, -2.0, -4.0], dtype=torch.float64)
    staleness_A = torch.tensor([0, 1, 2, 3])
    recomputed_A = torch.tensor([-7.0, -8.0, -9.0, -6.0], dtype=torch.float64)

    def got(how: str, recomputed_A: Tensor | None = recomputed_A) -> list[float]:
        result = proximal_logprobs(how, policy_A, behavior_A, staleness_A, recomputed_A)
        assert not result.requires_grad
        return result.tolist()

    assert got("recompute") == recomputed_A.tolist()
    assert got("behavior") == behavior_A.tolist()
    # α = 0, 1, 1/2, 1/3
    assert got("interpolate", None) == pytest.approx([-1.0, -2.0, -1.5, -4 / 3 - 2 / 3], rel=1e-12)
    with pytest.raises(ValueError, match="were not"):
        got("recompute", None)
    with pytest.raises(ValueError, match="no proximal policy 'guess'"):
        got("guess")


def test_kl_estimates_by_hand() -> None:
    policy_A, reference_A = torch.tensor([log(0.5), log(0.2)]), torch.tensor([log(0.25), log(0.2)])
    assert kl_estimate("k1", policy_A, reference_A).tolist() == pytest.approx([log(2), 0.0])
    assert kl_estimate("k2", policy_A, reference_A).tolist() == pytest.approx([log(2) ** 2 / 2, 0.0])
    assert kl_estimate("k3", policy_A, reference_A).tolist() == pytest.approx([0.5 - 1 + log(2), 0.0], abs=1e-7)
    with pytest.raises(ValueError, match="no estimate 'k4'"):
        kl_estimate("k4", policy_A, reference_A)


def test_kl_estimates_on_average() -> None:
    """Exactly, over all tokens of a small vocabulary V: which estimate is unbiased, and what its gradient descends."""
    generator = torch.Generator().manual_seed(0)
    logits_V = torch.randn(6, dtype=torch.float64, generator=generator).requires_grad_()
    reference_V = torch.randn(6, dtype=torch.float64, generator=generator).log_softmax(0)
    policy_V = logits_V.log_softmax(0)
    chance_V = policy_V.detach().exp()

    def gradient(scalar: Tensor) -> Tensor:
        return torch.autograd.grad(scalar, logits_V, retain_graph=True)[0]

    forward = (policy_V.exp() * (policy_V - reference_V)).sum()
    backward = (reference_V.exp() * (reference_V - policy_V)).sum()
    mean = {how: (chance_V * kl_estimate(how, policy_V, reference_V)).sum() for how in ("k1", "k2", "k3")}
    assert mean["k1"].item() == pytest.approx(forward.item(), rel=1e-12)
    assert mean["k3"].item() == pytest.approx(forward.item(), rel=1e-12)
    assert abs(mean["k2"].item() - forward.item()) > 1e-3
    torch.testing.assert_close(gradient(mean["k1"]), torch.zeros(6, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(gradient(mean["k2"]), gradient(forward))
    torch.testing.assert_close(gradient(mean["k3"]), gradient(backward))
