"""Members with several branches weigh as others do, and rewards by turn come where they were given."""

import copy
import random
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from freerun.core import Batch, FinishReason, Group, Sample, Task
from freerun.core.nouns import NOT_SAMPLED, Returns
from freerun.train.advantages import advantages, scales_of
from freerun.train.config import TrainConfig
from freerun.train.estimate import estimate
from freerun.train.learner import Learner
from freerun.train.members import Added, compared, members_in
from freerun.train.packing import num_trained, pack
from freerun.train.ranks import ALONE
from tests.tiny import tiny_decoder
from tests.train.test_advantages import plain_gae
from tests.train.test_learner import gradient_of_step

HOW = ["group", "group_mean", "rloo", "batch"]


def conversation(parts: list[tuple[list[int], bool]], reward: float, member: int | None = None) -> Sample:
    """Tokens, and whether they are trained."""
    tokens = [token for said, _ in parts for token in said]
    marks = [trained for said, trained in parts for _ in said]
    logprobs = [-2.0 - token % 7 / 10 if trained else 0.0 for token, trained in zip(tokens, marks, strict=True)]
    versions = [0 if trained else NOT_SAMPLED for trained in marks]
    return Sample(tokens, marks, logprobs, versions, FinishReason.STOP, reward=reward, member=member)


def batches(seed: int, turns: int = 3, returns: bool = False) -> tuple[Batch, Batch]:
    """The same conversations twice: one sample a member, and one a turn, in which the turns before are given."""
    dice = random.Random(seed)

    def said() -> list[int]:
        return [dice.randrange(2, 48) for _ in range(dice.randrange(1, 5))]

    whole, apart = [], []
    for number in range(3):
        prompt = said()
        entire: list[Sample] = []
        branches: list[Sample] = []
        for member in range(3):
            parts, reward = [(prompt, False)], dice.random()
            by_turn = [(sum(1.0 for _ in range(turn, turns)) * reward, turn) for turn in range(turns)]
            to_come: list[tuple[float, int]] = [(by_turn[0][0], len(prompt))]
            for turn in range(dice.randrange(1, turns + 1)):
                ours, theirs = said(), said()
                given = [(tokens, False) for tokens, _ in parts]
                branches.append(conversation([*given, (ours, True), (theirs, False)], reward, member))
                parts += [(ours, True), (theirs, False)]
                to_come.append((by_turn[turn][0], len(ours) + len(theirs)))
                if returns:
                    branches[-1].returns = tuple(to_come)
            entire.append(conversation(parts, reward))
            if returns:
                entire[-1].returns = tuple(to_come)
        dice.shuffle(branches)
        whole.append(Group(number, Task(str(number), "", []), entire, 0))
        apart.append(Group(number, Task(str(number), "", []), branches, 0))
    return Batch(0, whole), Batch(0, apart)


@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize(
    "config",
    [
        {"objective": "grpo"},
        {"objective": "rloo", "average": "sequence", "kl": {"coef": 0.2, "apply_to": "reward", "estimator": "k1"}},
        {"objective": "dr_grpo", "overlong_share": 0.5},
        {"objective": "reinforce_pp", "micro_batch_tokens": 24},
        {"objective": "decoupled_ppo", "average": "constant", "advantages": "rloo"},
    ],
)
def test_a_conversation_in_branches_teaches_what_it_does_in_one_sample(config: dict[str, Any], returns: bool) -> None:
    """Whatever is compared and averaged: three branches weigh as one."""
    for seed in range(3):
        one, several = batches(seed, returns=returns)
        expected, got = gradient_of_step(one, **config), gradient_of_step(several, **config)
        assert max(tensor.abs().max() for tensor in expected.values()) > 1e-4
        for name, tensor in expected.items():
            torch.testing.assert_close(got[name], tensor, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"objective": "gspo"},
        {"objective": "grpo", "kl": {"coef": 0.1}, "entropy": {"coef": 0.01}},
        {"objective": "ppo", "advantages": "gae"},
        {"lora": {"rank": 2}},
    ],
)
def test_a_step_on_a_tree_is_one_on_separate_sequences(config: dict[str, Any]) -> None:
    _, several = batches(5, returns=True)
    tree, apart = (gradient_of_step(several, micro_batch_tokens=tokens, **config) for tokens in (10_000, 1))
    assert tree.keys() == apart.keys()
    assert max(tensor.abs().max() for tensor in tree.values()) > 1e-4
    for name, tensor in tree.items():
        torch.testing.assert_close(apart[name], tensor, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("average", ["token", "sequence", "constant"])
def test_averages_count_members(average: str) -> None:
    prompt = [5, 6]
    ten = [conversation([(prompt, False), ([7, 9 + n, 8], True)], 1.0, member=0) for n in range(10)]
    one = conversation([(prompt, False), ([3, 4], True)], 0.0, member=1)
    learner = Learner(tiny_decoder(), TrainConfig(average=average, micro_batch_tokens=30), longest=40)
    plan = learner._plan(Batch(0, [Group(0, Task("a", "", []), [*ten[:4], one, *ten[4:]], 0)]))
    assert len(plan[0]) > 1, "in several micro-batches"
    by_answer: dict[float, float] = {}
    for micro in plan[0]:
        for weight, advantage in zip(micro.weights_A.tolist(), micro.advantages_A.tolist(), strict=True):
            by_answer[advantage] = by_answer.get(advantage, 0.0) + weight
    expected = {"token": [30 / 32, 2 / 32], "sequence": [1 / 2, 1 / 2], "constant": [30 / 80, 2 / 80]}[average]
    assert sorted(by_answer, reverse=True) == pytest.approx([sqrt(0.5), -sqrt(0.5)], rel=1e-5)
    assert [by_answer[advantage] for advantage in sorted(by_answer, reverse=True)] == pytest.approx(expected, rel=1e-5)


def test_branches_stay_in_one_minibatch() -> None:
    _, several = batches(1)
    learner = Learner(tiny_decoder(), TrainConfig(minibatches=4))
    seen: list[list[int]] = []
    packed = learner._packed
    learner._packed = lambda indices, *rest: (seen.append(indices), packed(indices, *rest))[1]  # type: ignore[method-assign, func-returns-value]
    learner._plan(several)
    where = {place: minibatch for minibatch, places in enumerate(seen) for place in places}
    members = members_in(several.groups)
    assert len(members) == 9
    assert any(len(member.places) > 1 for member in members)
    assert all(len({where[place] for place in member.places}) == 1 for member in members)
    counts = [len({i for i, member in enumerate(members) if where[member.places[0]] == m}) for m in range(4)]
    assert sorted(counts) == [2, 2, 2, 3]


def test_members_with_nothing_to_train_are_compared_with() -> None:
    one, _ = batches(4)
    mute = one.groups[0].samples[0]
    mute.loss_mask = np.zeros(len(mute.tokens), np.bool_)
    members = members_in(one.groups)
    rewards = [member.samples[0].reward or 0.0 for member in members]
    expected = advantages(rewards, [member.group for member in members], "group")
    got = compared(members, [Added()] * len(members), "group")
    assert [branches[0][0][0] for branches in got] == expected


def test_turns_by_hand() -> None:
    """Group 1: a member with returns 3 and 1, and one with 0: means 2 and 0, so the baseline is 1; squared distances
    (4 + 0)/2 and 1, so the spread is √(3/1). Group 2 has one member, and nobody to compare it with."""
    members, groups = [[3.0, 1.0], [0.0], [5.0, 1.0]], [1, 1, 2]

    def found(how: str) -> list[list[float]]:
        scales = scales_of(members, groups, how)
        return [[scale.advantage(value) for value in turns] for scale, turns in zip(scales, members, strict=True)]

    assert found("group_mean") == [[2.0, 0.0], [-1.0], [0.0, 0.0]]
    assert found("rloo") == [[4.0, 0.0], [-2.0], [0.0, 0.0]]
    by_group = [[2 / sqrt(3), 0.0], [-1 / sqrt(3)], [0.0, 0.0]]
    assert found("group") == [pytest.approx(turns, rel=1e-5) for turns in by_group]
    mean = (2 + 0 + 3) / 3
    spread = sqrt((((3 - mean) ** 2 + (1 - mean) ** 2) / 2 + mean**2 + ((5 - mean) ** 2 + (1 - mean) ** 2) / 2) / 3)
    by_batch = [[(value - mean) / spread for value in turns] for turns in members]
    assert found("batch") == [pytest.approx(turns, rel=1e-5) for turns in by_batch]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-10, 10)), min_size=1, max_size=12), st.sampled_from(HOW))
def test_without_rewards_on_the_way_turns_change_nothing(members: list[tuple[int, float]], how: str) -> None:
    """Bit for bit: a return at every turn that is the reward counts as the reward alone."""
    samples = [
        Sample([5, 6, 7, 8], [False, True, False, True], [0.0] * 4, [-1, 0, -1, 0], FinishReason.STOP, reward=reward)
        for _, reward in members
    ]
    groups = [
        Group(number, Task("a", "", []), [s for s, (g, _) in zip(samples, members, strict=True) if g == number], 0)
        for number in range(4)
    ]

    def found() -> list[list[Returns]]:
        in_all = members_in(groups)
        return compared(in_all, [Added()] * len(in_all), how)

    alone = found()
    expected = advantages([m.samples[0].reward or 0.0 for m in members_in(groups)],
                          [m.group for m in members_in(groups)], how)  # fmt: skip
    assert [branches[0][0][0] for branches in alone] == expected
    for sample in samples:
        sample.returns = ((sample.reward or 0.0, 4),)
    assert found() == alone


def test_returns_are_of_trained_turns_only() -> None:
    """Given tokens have returns, too, and a turn that another branch trains counts there."""
    sample = conversation([([5, 6], False), ([7, 8], True), ([9], False), ([3], True), ([4, 2], True)], reward=9.0)
    sample.returns = ((99.0, 2), (4.0, 3), (2.0, 1), (1.0, 2))
    assert sample.turn_returns == [4.0, 2.0, 1.0]
    sample.loss_mask = [True, False, False, False, False, False, True, False]
    assert sample.turn_returns == [1.0], "nothing predicts the first token of all"
    sample.returns = None
    assert sample.turn_returns == [9.0]


@pytest.mark.parametrize("penalised", [False, True])
def test_a_critic_sees_rewards_where_they_were_given(penalised: bool) -> None:
    """At the last token of their turn; what the member is given after a branch, at the branch's end."""
    long = conversation([([5], False), ([7, 8], True), ([9], False), ([3, 4, 2], True)], reward=0.0)
    fork = conversation([([5], False), ([7, 8], False), ([6], False), ([2], True)], reward=0.0)
    micro = pack([long, fork], [((7.0, 4), (5.0, 3)), ((7.0, 3), (4.5, 2))])
    values = [[0.5, -1.0, 2.0, 0.0, 1.0], [3.0]]
    micro.values_A = torch.tensor([value for row in values for value in row])
    rewards = [[0.0, 2.0, 0.0, 0.0, 5.0], [4.5]]
    if penalised:
        micro.penalty_A = torch.linspace(0.1, 0.6, 6)
        penalties = iter(micro.penalty_A.tolist())
        rewards = [[reward - next(penalties) for reward in row] for row in rewards]
    found, returns = plain_gae(values, rewards, gamma=0.9, lam=0.8)
    estimate([micro], 0.9, 0.8, ALONE)
    assert micro.returns_A is not None
    assert micro.returns_A.tolist() == pytest.approx(returns, abs=1e-5)
    raw = torch.tensor(found)
    expected = (raw - raw.mean()) / (raw.std(correction=0) + 1e-6)
    torch.testing.assert_close(micro.advantages_A, expected, rtol=1e-4, atol=1e-4)


def test_equal_rewards_with_other_returns_have_signal() -> None:
    one, _ = batches(2, returns=True)
    group = one.groups[0]
    for sample in group.samples:
        sample.reward = 1.0
    assert group.has_signal
    for sample in group.samples:
        sample.returns = ((1.0, len(sample.tokens)),)
    assert not group.has_signal
    group.samples[0].reward = 0.0
    assert not group.has_signal, "what it is trained by are its returns"
    group.samples[0].returns = None
    assert group.has_signal
    group.samples[1:] = []
    assert not group.has_signal, "nobody to be compared with"


def test_the_step_tells_how_much_of_it_teaches_and_what_it_computed() -> None:
    _, several = batches(6, returns=True)
    equal = copy.deepcopy(several)
    for sample in equal.samples:
        sample.reward, sample.returns = 1.0, None
    quiet = Learner(tiny_decoder(), TrainConfig()).step(equal).metrics
    assert quiet["signal_share"] == 0
    told = Learner(tiny_decoder(), TrainConfig()).step(several).metrics
    assert told["signal_share"] > 0.5
    assert told["tokens"] == sum(num_trained(sample) for sample in several.samples)
    assert told["distinct_tokens"] <= told["computed_tokens"] <= 1.1 * told["distinct_tokens"]
    assert told["computed_tokens"] < 0.8 * sum(len(sample.tokens) for sample in several.samples)
