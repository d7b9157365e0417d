"""Games of TextArena: the real ones, against a policy that answers from a script."""

import random
import re
from itertools import pairwise
from typing import Any

import pytest

from freerun.core import ConfigError, Task
from freerun.rollouts.agents.load import spec_of
from freerun.rollouts.config import RolloutConfig
from freerun.rollouts.environments import textarena
from tests.rollouts.environments.policy import Message, played

pytest.importorskip("textarena", reason="needs textarena: make install")

GUESS = "GuessTheNumber-v0"
SHORT = {"max_number": 16, "max_turns": 4, "score": "won"}


def task(seed: int, **more: object) -> Task:
    return Task(f"seeds:{seed}", "", [], None, {"seed": seed, **more})


def halving(messages: list[Message]) -> str:
    """The best strategy, read from what the game has said."""
    low, high = 1, 16
    for said, told in zip(messages[1::2], messages[2::2], strict=True):
        guess = int(re.findall(r"\d+", said["content"])[-1])
        low, high = (low, guess - 1) if "lower" in told["content"] else (guess + 1, high)
    return f"I guess [{(low + high) // 2}]"


@pytest.mark.parametrize("seed", range(3))
def test_a_strategy_wins_and_the_conversation_only_grows(seed: int) -> None:
    reward, policy = played(halving, lambda s: textarena.run(task(seed), s, GUESS, SHORT, max_turns=8))
    assert reward == 1.0
    for earlier, later in pairwise(policy.requests):
        assert later["messages"][: len(earlier["messages"])] == earlier["messages"]
    assert "between 1 and 16 within 4 turns" in policy.requests[0]["messages"][0]["content"]
    assert [m["role"] for m in policy.requests[-1]["messages"]][-1] == "user"
    assert "I guess" not in policy.requests[-1]["messages"][-1]["content"], "its own moves are not repeated"


def test_a_seed_is_a_game() -> None:
    def said(seed: int) -> list[str]:
        dice = random.Random(1)
        options = {"max_number": 1000}
        _, policy = played(
            lambda _: f"[{dice.randint(1, 1000)}]", lambda s: textarena.run(task(seed), s, GUESS, options, max_turns=6)
        )
        return [m["content"] for m in policy.requests[-1]["messages"]]

    assert said(3) == said(3) != said(5)


def test_the_games_own_reward_is_kept_and_an_unfinished_game_has_its_own() -> None:
    def reward(answer: str, max_turns: int, **options: object) -> float:
        result, _ = played(lambda _: answer, lambda s: textarena.run(task(1), s, GUESS, options, max_turns))
        assert isinstance(result, float)
        return result

    assert 0 < reward("[1]", 8) < 1, "how near the guess was; a second invalid move in a row ends the game"
    assert reward("[1]", 8, score="won") == 0
    assert reward("[1]", 1) == 0
    assert reward("[1]", 1, unfinished=-0.5) == -0.5


def test_data_may_bring_a_system_message() -> None:
    told = Task("x", "", [], None, {"seed": 1}, [{"role": "system", "content": "Play well."}])
    _, policy = played(halving_after_system, lambda s: textarena.run(told, s, GUESS, SHORT, max_turns=8))
    assert policy.requests[0]["messages"][0] == {"role": "system", "content": "Play well."}


def halving_after_system(messages: list[Message]) -> str:
    return halving(messages[1:])


@pytest.mark.parametrize(("seat", "opponent"), [(0, "random"), (1, "random"), (0, "policy-fixed")])
def test_a_game_for_two_against_random_moves_and_against_a_fixed_model(seat: int, opponent: str) -> None:
    def any_move(messages: list[Message]) -> str:
        moves: list[str] = textarena.MOVE.findall(messages[-1]["content"])
        return moves[-1]

    options = {"seat": seat, "opponent": opponent}
    reward, policy = played(any_move, lambda s: textarena.run(task(2), s, "TicTacToe-v0", options, max_turns=9))
    assert reward in (-1.0, 0.0, 1.0)
    models = {request["model"] for request in policy.requests}
    assert models == ({"policy"} if opponent == "random" else {"policy", "policy-fixed"})


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("textarena:GuessTheNumbr-v0", 'textarena has no game "GuessTheNumbr-v0"; did you mean GuessTheNumber-v0?'),
        ({"name": f"textarena:{GUESS}", "max_numbers": 3}, 'has no option "max_numbers"; did you mean max_number?'),
        ({"name": f"textarena:{GUESS}", "score": "wins"}, 'score "wins" is none of game, won'),
        ({"name": f"textarena:{GUESS}", "seat": 1}, "is for one player: remove its option seat"),
        ("textarena:SecretMafia-v0", "is for more than two players"),
        ("textarena:TruthAndDeception-v0", "does not list its moves, so nobody can take a random one"),
        ("textarean:X", 'rollout.env "textarean:X" must be one of'),
        ("textarena", 'rollout.env "textarena" must be one of textarena:NAME'),
    ],
)
def test_what_is_wrong_is_found_before_a_run(env: str | dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        spec_of(RolloutConfig(env=env))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_game_whose_data_is_not_here_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nltk.data.path", [])
    with pytest.raises(
        ConfigError, match=r"Wordle-v0 does not start: it needs data, python -m nltk\.downloader words$"
    ):
        spec_of(RolloutConfig(env="textarena:Wordle-v0"))


def test_checking_leaves_the_random_numbers_alone() -> None:
    random.seed(7)
    before = random.getstate()
    spec_of(RolloutConfig(env={"name": f"textarena:{GUESS}", **SHORT}))
    assert random.getstate() == before
