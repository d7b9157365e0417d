"""Golden numbers: advantages from rewards, advantages from a critic, DAPO's penalty for length."""

import random
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from freerun.train.advantages import advantages, overlong_penalty
from freerun.train.gae import discounted_sums, gae, value_loss


def test_leave_one_out_by_hand() -> None:
    # Group 7: 1 against the mean of 0 and 4; and so on. Group 3 has one sample, and nobody to be compared with.
    assert advantages([1, 5, 0, 4], [7, 3, 7, 7], "rloo") == pytest.approx([1 - 2, 0, 0 - 2.5, 4 - 0.5])


def test_by_group_and_by_batch_by_hand() -> None:
    """A group is divided by the sample's deviation, √(Σ/(n − 1)), the batch by its own, √(Σ/n)."""
    rewards, groups = [1.0, 5.0, 0.0, 0.0, 3.0], [7, 3, 7, 7, 3]
    third = (2 / 3) ** 0.5 / 2**0.5
    expected = [2 / 3 / third, 1 / 2**0.5, -1 / 3 / third, -1 / 3 / third, -1 / 2**0.5]
    assert advantages(rewards, groups, "group") == pytest.approx(expected, rel=1e-5)
    whole = (sum((r - 1.8) ** 2 for r in rewards) / 5) ** 0.5
    assert advantages(rewards, groups, "batch") == pytest.approx([(r - 1.8) / whole for r in rewards], rel=1e-5)


def test_huge_rewards_do_not_overflow() -> None:
    assert advantages([1e300, -1e300], [1, 1], "group") == pytest.approx([2**-0.5, -(2**-0.5)])


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-10, 10)), min_size=1, max_size=20))
def test_leave_one_out_is_what_it_says(samples: list[tuple[int, float]]) -> None:
    expected = []
    for i, (group, reward) in enumerate(samples):
        others = [r for j, (g, r) in enumerate(samples) if g == group and j != i]
        expected.append(reward - sum(others) / len(others) if others else 0.0)
    got = advantages([r for _, r in samples], [g for g, _ in samples], "rloo")
    assert got == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("how", ["group", "group_mean", "rloo", "batch"])
def test_equal_rewards_teach_nothing_at_all(how: str) -> None:
    """The mean of eight times 0.2 is not quite 0.2."""
    assert sum([0.2] * 8) / 8 != 0.2
    assert advantages([0.2] * 8, [3] * 8, how) == [0.0] * 8


def test_unknown_advantages_are_refused() -> None:
    with pytest.raises(ValueError, match="no advantages 'gae' from rewards alone"):
        advantages([1.0], [0], "gae")


@pytest.mark.parametrize(
    ("length", "penalty"), [(1, 0.0), (16_384, 0.0), (17_408, -0.25), (18_432, -0.5), (20_480, -1.0), (30_000, -1.0)]
)
def test_overlong_penalty_with_the_papers_numbers(length: int, penalty: float) -> None:
    assert overlong_penalty(length, longest=20_480, buffer=4_096) == penalty


def test_no_buffer_no_penalty() -> None:
    assert overlong_penalty(100, longest=100, buffer=0) == 0.0


def plain_gae(
    values: list[list[float]], rewards: list[list[float]], gamma: float, lam: float
) -> tuple[list[float], list[float]]:
    """One sequence at a time, from its last token backwards."""
    result, returns = [], []
    for v, r in zip(values, rewards, strict=True):
        behind = 0.0
        backwards = []
        for t in reversed(range(len(v))):
            after = v[t + 1] if t + 1 < len(v) else 0.0
            behind = r[t] + gamma * after - v[t] + gamma * lam * behind
            backwards.append(behind)
        result += backwards[::-1]
        returns += [a + value for a, value in zip(backwards[::-1], v, strict=True)]
    return result, returns


def flat(rows: list[list[float]]) -> Tensor:
    return torch.tensor([x for row in rows for x in row])


def compare(lengths: list[int], gamma: float, lam: float, seed: int, tolerance: float) -> None:
    """Our float32 against a plain loop in float64."""
    dice = random.Random(seed)
    values = [[dice.gauss(0, 1) for _ in range(n)] for n in lengths]
    outcome = [dice.choice([-5.0, 5.0]) for _ in lengths]
    penalty = [[dice.gauss(0, 0.01) for _ in range(n)] for n in lengths]
    rewards = [[*p[:-1], p[-1] + r] for p, r in zip(penalty, outcome, strict=True)]
    expected = plain_gae(values, rewards, gamma, lam)
    sequence_A = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    got = gae(flat(values), torch.tensor(outcome), sequence_A, gamma, lam, flat(penalty))
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), torch.tensor(theirs, dtype=torch.float64), atol=tolerance, rtol=0)


@settings(deadline=None)  # torch's first call is slow
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=12),
    st.sampled_from([0.0, 0.9, 1.0]),
    st.sampled_from([0.0, 0.95, 1.0]),
    st.integers(0, 10),
)
def test_gae_equals_the_plain_loop(lengths: list[int], gamma: float, lam: float, seed: int) -> None:
    compare(lengths, gamma, lam, seed, tolerance=2e-5)


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (1.0, 0.95), (0.999, 0.95), (0.9999, 1.0)])
def test_gae_over_long_sequences(gamma: float, lam: float) -> None:
    compare([32_768, 1, 20_001], gamma, lam, seed=1, tolerance=5e-5)


def test_gae_by_hand() -> None:
    # Two sequences, γ = λ = 1: an advantage is the reward less the value, a return is the reward.
    sequence_A = torch.tensor([0, 0, 0, 1, 1])
    values_A = torch.tensor([0.5, 0.25, 1.0, -1.0, 0.0])
    advantages_A, returns_A = gae(values_A, torch.tensor([2.0, -3.0]), sequence_A)
    assert advantages_A.tolist() == pytest.approx([1.5, 1.75, 1.0, -2.0, -3.0])
    assert returns_A.tolist() == pytest.approx([2.0, 2.0, 2.0, -3.0, -3.0])


def test_a_sequence_does_not_reach_into_the_next() -> None:
    sequence_A = torch.tensor([0, 1, 1, 1, 1, 2, 2])
    ones_A = torch.ones(7)
    assert discounted_sums(ones_A, sequence_A, 1.0).tolist() == [1, 4, 3, 2, 1, 2, 1]
    assert discounted_sums(ones_A, sequence_A, 0.5).tolist() == [1, 1.875, 1.75, 1.5, 1, 1.5, 1]
    assert discounted_sums(ones_A, sequence_A, 0.0).tolist() == [1] * 7
    assert ones_A.tolist() == [1] * 7


@pytest.mark.parametrize(
    ("value", "loss", "gradient", "clipped"),
    [
        (1.1, 0.405, -0.9, False),  # within the clip of old = 1: ½ (1.1 − 2)²
        (1.5, 0.32, 0.0, True),  # beyond it, towards the return: held at 1.2
        (0.5, 1.125, -1.5, False),  # beyond it, away from the return: in full
        (3.5, 1.125, 1.5, False),  # past the return so far that the free loss is the larger: in full
    ],
)
def test_value_loss_by_hand(value: float, loss: float, gradient: float, clipped: bool) -> None:
    values_A = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    old_A, returns_A = torch.tensor([1.0], dtype=torch.float64), torch.tensor([2.0], dtype=torch.float64)
    got = value_loss(values_A, old_A, returns_A, clip=0.2)
    torch.autograd.backward(got.loss_A.sum())
    assert values_A.grad is not None
    assert got.loss_A.item() == pytest.approx(loss)
    assert values_A.grad.item() == pytest.approx(gradient)
    assert got.clipped_A.item() == clipped


def test_penalty_never_rises_with_length() -> None:
    penalties = [overlong_penalty(length, longest=64, buffer=16) for length in range(1, 80)]
    assert all(a >= b for a, b in pairwise(penalties))
