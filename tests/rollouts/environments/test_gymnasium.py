"""Environments of Gymnasium, seen as text."""

from typing import Any

import pytest

from freerun.core import ConfigError, Task
from freerun.rollouts.agents.load import spec_of
from freerun.rollouts.config import RolloutConfig
from freerun.rollouts.environments import gymnasium
from tests.rollouts.environments.policy import ScriptedPolicy, played

pytest.importorskip("gymnasium", reason="needs gymnasium: make install")

LAKE: dict[str, Any] = {"is_slippery": False}


def act(
    *answers: str, name: str = "FrozenLake-v1", max_turns: int = 8, seed: int = 0, **options: object
) -> ScriptedPolicy:
    left = list(answers)
    task = Task("t", "", [], None, {"seed": seed})
    result, policy = played(lambda _: left.pop(0), lambda s: gymnasium.run(task, s, name, options, max_turns))
    assert result is None, "the turns have the rewards"
    return policy


def test_the_goal_is_reached_and_each_turn_has_its_reward() -> None:
    policy = act(*"112122", **LAKE)
    assert policy.rewards == [(1, 0.0), (2, 0.0), (3, 0.0), (4, 0.0), (5, 0.0), (6, 1.0)]
    said = policy.requests[-1]["messages"]
    assert said[0]["content"].startswith(
        "You act in FrozenLake. Answer with one action: a whole number from 0 to 3.\n0: Move left\n1: Move down\n"
    )
    assert said[0]["content"].endswith("|S|FFF\nFHFH\nFFFH\nHFFG")
    assert said[2]["content"].endswith("SFFF\n|F|HFH\nFFFH\nHFFG")


def test_the_last_number_counts_and_what_is_no_action_uses_a_turn() -> None:
    policy = act("from 3 I go to 1", "9", "hm", "1", max_turns=4, illegal=-1, **LAKE)
    assert [reward for _, reward in policy.rewards] == [0.0, -1.0, -1.0, 0.0]
    said = policy.requests[-1]["messages"]
    assert said[4]["content"] == "That is no action. Answer with one action: a whole number from 0 to 3."
    assert len(policy.requests) == 4


def test_numbers_instead_of_a_drawing_and_own_instructions() -> None:
    policy = act("1", "1", max_turns=2, render="numbers", instructions="Walk.", **LAKE)
    assert [m["content"] for m in policy.requests[-1]["messages"]] == ["Walk.\n\n0", "1", "4"]


def test_a_tuple_is_shown_without_its_types_and_a_seed_is_a_game() -> None:
    first, again = (act("0", name="Blackjack-v1", seed=4).requests[0]["messages"] for _ in range(2))
    other = act("0", name="Blackjack-v1", seed=6).requests[0]["messages"]
    assert first == again != other
    assert first[0]["content"].splitlines()[-1].startswith("(")
    assert "np." not in first[0]["content"]


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("gymnasium:FrozenLak-v1", "did you mean FrozenLake-v1?"),
        ({"name": "gymnasium:FrozenLake-v1", "is_sliper": 1}, 'no option "is_sliper"; did you mean is_slippery?'),
        ({"name": "gymnasium:FrozenLake-v1", "render": "x"}, 'render "x" is none of ansi, numbers'),
        ({"name": "gymnasium:Blackjack-v1", "render": "ansi"}, "draws no text: set render: numbers"),
        ("gymnasium:Pendulum-v1", "are a Box, and only numbered ones"),
    ],
)
def test_what_is_wrong_is_found_before_a_run(env: str | dict[str, Any], said: str) -> None:
    spec_of(RolloutConfig(env="gymnasium:Taxi-v4"))
    with pytest.raises(ConfigError) as caught:
        spec_of(RolloutConfig(env=env))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
