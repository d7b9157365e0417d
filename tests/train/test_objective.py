"""Golden numbers: advantages and the decoupled objective, computed by hand."""

from math import exp, log

import pytest
import torch

from freerun.train.advantages import advantages
from freerun.train.losses.decoupled_ppo import decoupled_ppo


def test_advantages_within_groups_by_identity() -> None:
    # Group 7: rewards 1, 0, 0, 1 → mean 1/2, deviation 1/2. Group 3: 0, 3 → mean 3/2, deviation 3/2. They interleave.
    got = advantages([1, 0, 0, 3, 0, 1], [7, 3, 7, 3, 7, 7], "group")
    assert got == pytest.approx([1, -1, -1, 1, -1, 1], abs=1e-5)
    assert advantages([1, 0, 0, 3, 0, 1], [7, 3, 7, 3, 7, 7], "group_mean") == [0.5, -1.5, -0.5, 1.5, -0.5, 0.5]


def test_a_short_group_does_not_shift_the_others() -> None:
    assert advantages([1, 0, 1, 0], [0, 0, 1, 1], "group")[2:] == advantages([1, 1, 0], [0, 1, 1], "group")[1:]


def test_advantages_over_the_batch() -> None:
    # Mean 2, deviation sqrt((4 + 0 + 4 + 0) / 4) = sqrt 2.
    assert advantages([0, 2, 4, 2], [0, 0, 1, 1], "batch") == pytest.approx([-(2**0.5), 0, 2**0.5, 0], abs=1e-5)


def test_equal_rewards_teach_nothing() -> None:
    assert advantages([1, 1, 1], [0, 0, 0], "group") == [0, 0, 0]


@pytest.mark.parametrize(
    ("policy", "proximal", "behavior", "advantage", "loss"),
    [
        # all equal: −Â
        (log(0.5), log(0.5), log(0.5), 2.0, -2.0),
        # u = 1.5 clipped to 1.2 for a gain; w = 0.4 / 0.2 = 2
        (log(0.6), log(0.4), log(0.2), 1.0, -2.0 * 1.2),
        # u = 1.5 not clipped for a loss: the minimum is −1.5
        (log(0.6), log(0.4), log(0.2), -1.0, 2.0 * 1.5),
        # u = 0.5, not clipped for a gain: the minimum is 0.5; w = 0.4 / 0.8 = 0.5
        (log(0.2), log(0.4), log(0.8), 1.0, -0.5 * 0.5),
        # u = 0.5 clipped to 0.8 for a loss: the minimum is −0.8
        (log(0.2), log(0.4), log(0.8), -1.0, 0.5 * 0.8),
        # w = 0.4 / 0.04 = 10, capped at 5
        (log(0.4), log(0.4), log(0.04), 1.0, -5.0),
    ],
)
def test_decoupled_ppo_by_hand(policy: float, proximal: float, behavior: float, advantage: float, loss: float) -> None:
    p, prox, behav, adv = (torch.tensor([x], dtype=torch.float64) for x in (policy, proximal, behavior, advantage))
    got = decoupled_ppo(p, prox, behav, adv, clip_ratio=0.2, behavior_cap=5.0)
    assert got.loss_A.item() == pytest.approx(loss, rel=1e-12)
    assert got.capped.item() == (exp(proximal - behavior) > 5)


def test_fresh_tokens_make_it_plain_ppo() -> None:
    generator = torch.Generator().manual_seed(0)
    policy, old, advantage = (torch.randn(500, dtype=torch.float64, generator=generator) * 0.3 for _ in range(3))
    ratio = (policy - old).exp()
    plain = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    got = decoupled_ppo(policy, old, old, advantage, clip_ratio=0.2, behavior_cap=5.0)
    assert torch.equal(got.loss_A, plain)
