"""Every objective against its formula, written out here over plain numbers in float64: values and gradients.

`FORMULAS` knows nothing of the implementation. Each formula is the loss of a whole minibatch as a function of the
policy's log-probabilities; a second copy of them, held fixed, stands wherever the formula stops the gradient, so that
central differences give the gradient that the paper means.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log
from typing import Any

import pytest
import torch
from torch import Tensor

from freerun.core import ConfigError
from freerun.train.average import sequence_weights
from freerun.train.config import TrainConfig
from freerun.train.corrections import IcePop, Ratios, TokenWeight, correct
from freerun.train.losses import find_objective, names
from freerun.train.losses.gspo import gspo
from freerun.train.losses.ppo import ppo
from freerun.train.objective import Clip, TokenLoss, Tokens
from freerun.train.proximal import proximal_logprobs

LONGEST = 16
"""The most tokens an answer may have; the answers here have 1 to 9."""


@dataclass
class Answer:
    policy: list[float]
    proximal: list[float]
    behavior: list[float]
    advantage: float


def minibatch(seed: int, step: float = 0.3) -> list[Answer]:
    """`step` is how far the policy's log-probabilities have moved from the proximal ones."""
    dice = random.Random(seed)

    def answer(length: int) -> Answer:
        proximal = [dice.uniform(-4.0, -0.1) for _ in range(length)]
        moved = dice.gauss(0, step / 3)
        return Answer(
            policy=[p + moved + dice.gauss(0, step) for p in proximal],
            proximal=proximal,
            behavior=[p + dice.choice([0.0, 0.0, 0.0, -2.0, 3.0]) + dice.gauss(0, 0.3) for p in proximal],
            advantage=dice.choice([-1, 1]) * dice.uniform(0.3, 2.0),
        )

    return [answer(length) for length in (1, 9, 4, 2, 7, 7, 1, 5)]


Policy = Sequence[Sequence[float]]
Formula = Callable[[list[Answer], Policy, Policy], float]


def clip(ratio: float, low: float, high: float) -> float:
    return max(1 - low, min(1 + high, ratio))


def surrogate(ratio: float, advantage: float, low: float, high: float) -> float:
    return min(ratio * advantage, clip(ratio, low, high) * advantage)


def tokens_of(answers: list[Answer]) -> int:
    return sum(len(a.policy) for a in answers)


def by_token(low: float, high: float) -> Formula:
    """A trust region around the proximal policy, π_proximal / π_behavior capped at 5."""

    def loss(answers: list[Answer], policy: Policy, _: Policy) -> float:
        total = 0.0
        for a, new in zip(answers, policy, strict=True):
            for t in range(len(new)):
                weight = min(exp(a.proximal[t] - a.behavior[t]), 5.0)
                total += weight * surrogate(exp(new[t] - a.proximal[t]), a.advantage, low, high)
        return -total / tokens_of(answers)

    return loss


def decoupled(answers: list[Answer], policy: Policy, _: Policy) -> float:
    """Without the tokens that are more than 20% away from where they were sampled, on the side they are pushed to."""
    total, kept = 0.0, 0
    for a, new in zip(answers, policy, strict=True):
        for t in range(len(new)):
            weight = exp(a.proximal[t] - a.behavior[t])
            if (weight if a.advantage > 0 else 1 / weight) <= 1.2:
                kept += 1
                total += min(weight, 5.0) * surrogate(exp(new[t] - a.proximal[t]), a.advantage, 0.2, 0.2)
    return -total / kept


def naive_ppo(answers: list[Answer], policy: Policy, _: Policy) -> float:
    total = 0.0
    for a, new in zip(answers, policy, strict=True):
        total += sum(surrogate(exp(n - old), a.advantage, 0.2, 0.2) for n, old in zip(new, a.behavior, strict=True))
    return -total / tokens_of(answers)


def grpo(answers: list[Answer], policy: Policy, _: Policy) -> float:
    total = 0.0
    for a, new in zip(answers, policy, strict=True):
        gains = [
            min(exp(a.proximal[t] - a.behavior[t]), 5.0) * surrogate(exp(new[t] - a.proximal[t]), a.advantage, 0.2, 0.2)
            for t in range(len(new))
        ]
        total += sum(gains) / len(gains)
    return -total / len(answers)


def dr_grpo(answers: list[Answer], policy: Policy, same: Policy) -> float:
    return by_token(0.2, 0.2)(answers, policy, same) * tokens_of(answers) / (len(answers) * LONGEST)


def rloo(answers: list[Answer], policy: Policy, stopped: Policy) -> float:
    """REINFORCE: −weight · Â · log π, the weight π_policy / π_proximal · min(π_proximal / π_behavior, 5) stopped."""
    total = 0.0
    for a, new, fixed in zip(answers, policy, stopped, strict=True):
        for t in range(len(new)):
            weight = exp(fixed[t] - a.proximal[t]) * min(exp(a.proximal[t] - a.behavior[t]), 5.0)
            total += weight * a.advantage * new[t]
    return -total / tokens_of(answers)


def gspo_formula(answers: list[Answer], policy: Policy, _: Policy) -> float:
    total = 0.0
    for a, new in zip(answers, policy, strict=True):
        length = len(new)
        ratio = exp(sum(new[t] - a.proximal[t] for t in range(length)) / length)
        weight = sum(min(exp(a.proximal[t] - a.behavior[t]), 5.0) for t in range(length)) / length
        total += weight * surrogate(ratio, a.advantage, 3e-4, 4e-4)
    return -total / len(answers)


def cispo(answers: list[Answer], policy: Policy, stopped: Policy) -> float:
    total = 0.0
    for a, new, fixed in zip(answers, policy, stopped, strict=True):
        for t in range(len(new)):
            total += min(exp(fixed[t] - a.behavior[t]), 5.0) * a.advantage * new[t]
    return -total / tokens_of(answers)


FORMULAS: dict[str, Formula] = {
    "decoupled_ppo": decoupled,
    "ppo": naive_ppo,
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "dapo": by_token(0.2, 0.28),
    "rloo": rloo,
    "reinforce_pp": by_token(0.2, 0.2),
    "gspo": gspo_formula,
    "cispo": cispo,
}


def policy_of(answers: list[Answer]) -> list[list[float]]:
    return [list(a.policy) for a in answers]


def differences(formula: Formula, answers: list[Answer], width: float = 1e-6) -> list[float]:
    """The formula's gradient, token by token."""
    gradient = []
    for s, a in enumerate(answers):
        for t in range(len(a.policy)):
            up, down = policy_of(answers), policy_of(answers)
            up[s][t] += width
            down[s][t] -= width
            at = policy_of(answers)
            gradient.append((formula(answers, up, at) - formula(answers, down, at)) / (2 * width))
    return gradient


def flat(rows: Sequence[Sequence[float]]) -> Tensor:
    return torch.tensor([x for row in rows for x in row], dtype=torch.float64)


def packed(answers: list[Answer], proximal: str) -> Tokens:
    policy_A = flat([a.policy for a in answers]).requires_grad_()
    behavior_A = flat([a.behavior for a in answers])
    lengths = torch.tensor([len(a.policy) for a in answers])
    staleness_A = torch.zeros(len(policy_A), dtype=torch.long)
    recomputed_A = flat([a.proximal for a in answers])
    return Tokens(
        policy_A=policy_A,
        proximal_A=proximal_logprobs(proximal, policy_A, behavior_A, staleness_A, recomputed_A),
        behavior_A=behavior_A,
        advantages_A=flat([[a.advantage] * len(a.policy) for a in answers]),
        sequence_A=torch.repeat_interleave(torch.arange(len(answers)), lengths),
        num_sequences=len(answers),
        staleness_A=staleness_A,
    )


def learned(objective: str, micros: list[list[Answer]]) -> tuple[float, list[float], list[TokenLoss]]:
    """The minibatch's loss and gradient as a trainer puts them together from its micro-batches."""
    config = TrainConfig(objective=objective)
    weights = iter(sequence_weights([len(a.policy) for micro in micros for a in micro], config.average, LONGEST))
    total, gradient, losses, weight, kept = 0.0, [], [], 0.0, 0.0
    for answers in micros:
        tokens = packed(answers, config.proximal)
        average_A = torch.tensor([next(weights) for _ in answers], dtype=torch.float64)[tokens.sequence_A]
        log_ratio_A = tokens.proximal_A - tokens.behavior_A
        ratios = Ratios(log_ratio_A, tokens.advantages_A, tokens.sequence_A, tokens.num_sequences)
        correction = correct(config.corrections, ratios)
        loss = find_objective(objective).loss(tokens, config.clip.bounds)
        summed = (average_A * correction.weight_A * loss.loss_A).sum()
        torch.autograd.backward(summed)
        assert tokens.policy_A.grad is not None
        total += summed.item()
        gradient.extend(tokens.policy_A.grad.tolist())
        losses.append(loss)
        weight += average_A.sum().item()
        kept += (average_A * correction.kept_A).sum().item()
    return total * weight / kept, [g * weight / kept for g in gradient], losses


def step_of(objective: str) -> float:
    return 1e-3 if objective == "gspo" else 0.3


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("objective", FORMULAS)
def test_value_and_gradient_are_the_formulas(objective: str, seed: int) -> None:
    answers = minibatch(seed, step_of(objective))
    loss, gradient, _ = learned(objective, [answers])
    at = policy_of(answers)
    if objective != "rloo":  # its formula is of the gradient; the value has a test of its own
        assert loss == pytest.approx(FORMULAS[objective](answers, at, at), rel=1e-12)
    assert gradient == pytest.approx(differences(FORMULAS[objective], answers), rel=1e-6, abs=1e-9)


def test_rloo_reports_the_weighted_advantage() -> None:
    answers = minibatch(0)
    expected = 0.0
    for a in answers:
        for new, proximal, behavior in zip(a.policy, a.proximal, a.behavior, strict=True):
            expected -= min(exp(proximal - behavior), 5.0) * exp(new - proximal) * a.advantage
    loss, _, [tokens] = learned("rloo", [answers])
    assert loss == pytest.approx(expected / tokens_of(answers), rel=1e-12)
    assert not tokens.clipped_A.any()


@pytest.mark.parametrize("objective", sorted(set(FORMULAS) - {"rloo", "cispo", "decoupled_ppo"}))
def test_clipped_is_where_the_gradient_is_gone_and_all_cases_occur(objective: str) -> None:
    answers = [a for seed in range(3) for a in minibatch(seed, step_of(objective))]
    _, gradient, [loss] = learned(objective, [answers])
    assert [g == 0.0 for g in gradient] == loss.clipped_A.tolist()
    advantages = torch.tensor([a.advantage for a in answers for _ in a.policy])
    for sign in (-1, 1):  # clipped below with a negative advantage, above with a positive one, and neither
        assert 0 < loss.clipped_A[advantages.sign() == sign].double().mean() < 1


def test_cispo_cuts_weights_and_keeps_every_gradient() -> None:
    answers = [a for seed in range(3) for a in minibatch(seed)]
    _, gradient, [loss] = learned("cispo", [answers])
    assert all(g != 0.0 for g in gradient)
    ratios = [exp(new - old) for a in answers for new, old in zip(a.policy, a.behavior, strict=True)]
    assert loss.clipped_A.tolist() == [ratio > 5 for ratio in ratios]
    assert 0 < sum(ratio > 5 for ratio in ratios) < len(ratios)


@pytest.mark.parametrize("cuts", [[1, 2, 3, 4, 5, 6, 7], [3], [1, 6]])
@pytest.mark.parametrize("objective", FORMULAS)
def test_cutting_into_micro_batches_changes_nothing(objective: str, cuts: list[int]) -> None:
    answers = minibatch(7, step_of(objective))
    loss, gradient, _ = learned(objective, [answers])
    edges = [0, *cuts, len(answers)]
    cut_loss, cut_gradient, _ = learned(objective, [answers[a:b] for a, b in pairwise(edges)])
    assert cut_loss == pytest.approx(loss, rel=1e-12)
    assert cut_gradient == pytest.approx(gradient, rel=1e-12)


@pytest.mark.parametrize(
    ("policy", "proximal", "advantage", "loss", "gradient", "clipped"),
    [
        (0.5, 0.5, 2.0, -2.0, -2.0, False),  # u = 1
        (0.6, 0.4, 1.0, -1.28, 0.0, True),  # u = 1.5, a gain held at 1.28
        (0.6, 0.4, -1.0, 1.5, 1.5, False),  # u = 1.5, a loss in full
        (0.2, 0.4, 1.0, -0.5, -0.5, False),  # u = 0.5, a gain lost in full
        (0.2, 0.4, -1.0, 0.8, 0.0, True),  # u = 0.5, held at 0.8
        (0.2, 0.4, 0.0, 0.0, 0.0, False),  # nothing to learn
    ],
)
def test_one_token_by_hand(
    policy: float, proximal: float, advantage: float, loss: float, gradient: float, clipped: bool
) -> None:
    """A sequence of one token has its token's ratio, so GSPO and PPO agree on it."""
    for objective in (ppo, gspo):
        tokens = packed([Answer([log(policy)], [log(proximal)], [log(0.9)], advantage)], "recompute")
        got = objective(tokens, Clip(0.2, 0.28))
        torch.autograd.backward(got.loss_A.sum())
        assert tokens.policy_A.grad is not None
        assert got.loss_A.item() == pytest.approx(loss, rel=1e-12)
        assert tokens.policy_A.grad.item() == pytest.approx(gradient, rel=1e-12)
        assert got.clipped_A.item() == clipped


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped"),
    [
        (5.0, -2.0, 6.0, 0.0, True),  # a loss held at 3 · 2
        (2.9, -2.0, 5.8, 5.8, False),  # not yet
        (5.0, 2.0, -2.4, 0.0, True),  # a gain is PPO's to hold
        (0.5, -2.0, 1.6, 0.0, True),
        (0.5, 2.0, -1.0, -1.0, False),
    ],
)
def test_a_dual_clip_holds_losses_too(
    ratio: float, advantage: float, loss: float, gradient: float, clipped: bool
) -> None:
    for objective in (ppo, gspo):
        tokens = packed([Answer([log(ratio)], [0.0], [0.0], advantage)], "recompute")
        got = objective(tokens, Clip(0.2, 0.2, dual=3.0))
        torch.autograd.backward(got.loss_A.sum())
        assert tokens.policy_A.grad is not None
        assert got.loss_A.item() == pytest.approx(loss)
        assert tokens.policy_A.grad.item() == pytest.approx(gradient)
        assert got.clipped_A.item() == clipped


def test_gspo_by_hand() -> None:
    """Ratios 2 and 1/2 make a geometric mean of 1: nothing is clipped, and both tokens get half of the gradient."""
    answer = Answer([log(0.4), log(0.2)], [log(0.2), log(0.4)], [0.0, 0.0], 3.0)
    tokens = packed([answer], "recompute")
    got = gspo(tokens, Clip(3e-4, 4e-4))
    assert got.loss_A.tolist() == pytest.approx([-3.0, -3.0])
    torch.autograd.backward(got.loss_A.mean())
    assert tokens.policy_A.grad is not None
    assert tokens.policy_A.grad.tolist() == pytest.approx([-1.5, -1.5])
    assert not got.clipped_A.any()


def test_averages_by_hand() -> None:
    assert sequence_weights([1, 3, 4], "token", 10) == pytest.approx([1 / 8, 1 / 8, 1 / 8])
    assert sequence_weights([1, 3, 4], "sequence", 10) == pytest.approx([1 / 3, 1 / 9, 1 / 12])
    assert sequence_weights([1, 3, 4], "constant", 10) == pytest.approx([1 / 30, 1 / 30, 1 / 30])
    with pytest.raises(ValueError, match="no average 'median'"):
        sequence_weights([1], "median", 10)


def test_every_objective_has_a_formula() -> None:
    assert set(names()) == {*FORMULAS, "distill"}, "that of distill is in test_distill.py"


@pytest.mark.parametrize("objective", FORMULAS)
def test_every_objective_says_all_that_its_paper_does(objective: str) -> None:
    """None relies on a default, which another objective may have been the reason for."""
    keys = ("clip.low", "clip.high", "advantages", "average", "proximal", "corrections")
    assert set(find_objective(objective).implies) >= {f"train.{key}" for key in keys}


def test_what_an_objective_implies_holds_unless_it_is_set() -> None:
    assert TrainConfig(objective="decoupled_ppo") == TrainConfig()
    assert TrainConfig() == TrainConfig.model_construct(), "the defaults are the default objective's"
    assert TrainConfig(objective="dr_grpo").average == "constant"
    told = TrainConfig.model_validate(
        {
            "objective": "gspo",
            "clip": {"high": 0.5},
            "average": "constant",
            "advantages": "batch",
            "proximal": "interpolate",
            "corrections": [],
        }
    )
    assert told.clip.bounds == Clip(3e-4, 0.5)
    assert (told.average, told.advantages, told.proximal, told.corrections) == ("constant", "batch", "interpolate", ())
    assert TrainConfig.model_validate({"clip": {"dual": 3.0}}).clip.bounds == Clip(0.2, 0.2, 3.0)
    assert TrainConfig(objective="dapo").overlong_share == 0.2
    given = {"name": "token", "cap": 2.0}
    assert TrainConfig.model_validate({"corrections": [given, "distance"]}).corrections[0] == TokenWeight(cap=2.0)
    assert TrainConfig.model_validate({"corrections": ["icepop"]}).corrections == (IcePop(low=0.5, high=5.0),)


def test_corrections_that_are_only_implied_give_way_to_the_paper_s_proximal_policy() -> None:
    """`train.objective=grpo train.proximal=behavior` is the paper's, and has nothing to correct."""
    assert TrainConfig(objective="grpo").corrections == (TokenWeight(),)
    assert TrainConfig(objective="grpo", proximal="behavior").corrections == ()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"corrections": ["token", "geometric", "icepop"]}, "token and icepop each weigh"),
        ({"corrections": ["hope"]}, "there is no correction 'hope'; choose among token, sequence"),
        ({"corrections": [{"name": "token", "low": 1}]}, "Extra inputs are not permitted"),
        ({"corrections": [{"name": "geometric", "low": 1.1, "high": 2}]}, "low and high should lie around 1"),
        ({"kl": {"coef": 0.1, "estimator": "k1"}}, "k1 in the loss teaches nothing"),
        ({"objective": "cispo", "clip": {"dual": 3.0}}, "train.clip.dual does nothing with cispo"),
    ],
)
def test_contradictory_settings_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        TrainConfig.model_validate(settings)


def test_k1_may_be_taken_from_the_reward() -> None:
    given = {"coef": 0.1, "estimator": "k1", "apply_to": "reward"}
    assert TrainConfig.model_validate({"kl": given}).kl.estimator == "k1"


def test_an_objective_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r'there is no objective "gpso": use one of cispo, .*; did you mean gspo'):
        TrainConfig(objective="gpso")
