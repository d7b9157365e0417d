import json
from pathlib import Path
from typing import Any

import pytest
import reasoning_gym

from freerun.core import ConfigError, RewardError, Task
from freerun.rewards.base import Judged, JudgeReason
from freerun.rewards.judges import BUILT_IN, check, resolve
from freerun.rewards.spec import JudgeSetting, parse_judge


def judge(spec: JudgeSetting, answer: str | None, text: str, extra: dict[str, Any] | None = None) -> float:
    (part,) = parse_judge(spec)
    value = resolve(part)(Task("t", "", [], answer, extra or {}), text)
    return float(value.reward if isinstance(value, Judged) else value)


@pytest.mark.parametrize(
    ("answer", "text", "right"),
    [("cat", " cat\n", True), ("cat ", "cat", True), ("cat", "Cat", False), ("cat", "a cat", False), ("", "", True)],
)
def test_exact(answer: str, text: str, right: bool) -> None:
    assert judge("exact", answer, text) == right


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("72", "72"),
        ("48/2 = 24\n#### 72", "So she sold 72."),
        ("72", "48 in April, 24 in May: 72 clips."),
        ("1,234", "it is 1234"),
        ("1234", "it is 1,234.00 in total"),
        ("1234567", "1{,}234{,}567"),
        ("1000", r"1,\!000"),
        ("18", "She makes $18 every day."),
        ("18", r"\boxed{\$18}"),
        ("$-5", "-$5"),
        ("-5", "the change is −5"),
        ("-0.5", "-.5"),
        ("3.5", "3.50"),
        ("3.5", "2 + 1.5 = 3.5."),
        ("50%", "50"),
        ("50", r"50\%"),
        ("0.5", "50%"),
        ("50%", "0.5"),
        ("12", "12 percent"),
        ("1/2", "0.5"),
        ("1/2", "2/4"),
        ("1/2", r"\boxed{\frac{1}{2}}"),
        ("1/6", r"The probability is \frac{1}{6}."),
        ("-1/2", r"-\dfrac{1}{2}"),
        ("2.5", "2 1/2 cups"),
        ("2.5", r"2\frac{1}{2}"),
        ("24", "day 10 48/2"),
        ("3", "5-3"),
        ("19", "covid-19"),
        ("25", "an area of 25 cm^2"),
        ("25", "an area of 25 m2"),
        ("25", "an area of 25 m^{2}"),
        ("1500", "1.5e3"),
        ("5", "wait...5"),
        ("3", "1.2.3"),
    ],
)
def test_number_right(answer: str, text: str) -> None:
    assert judge("number", answer, text) == 1


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("72", "72 at first, then 73"),
        ("72", "seventy-two"),
        ("72", ""),
        ("72", "7.2"),
        ("72", "172"),
        ("72", "-72"),
        ("-5", "5"),
        ("50", "0.5"),
        ("50%", "0.5%"),
        ("1/3", "0.33"),
        ("1/2", "1/20"),
        ("1", "1/0"),
        ("1234", "1,23,4"),
        ("72", "7" * 1_000_000),
        ("72", "1e999999999"),
    ],
)
def test_number_wrong(answer: str, text: str) -> None:
    assert judge("number", answer, text) == 0


def gym_extra(name: str, index: int = 0, **options: Any) -> dict[str, Any]:
    """As data/ leaves it: the entry as JSON keeps it, and what it takes to make it again."""
    options = {"seed": 3, "size": 2, **options}
    entry = reasoning_gym.create_dataset(name, **options)[index]
    told = {"reasoning_gym": name, "reasoning_gym_options": options, "reasoning_gym_index": index}
    extra: dict[str, Any] = json.loads(json.dumps({**entry, **told}))
    return extra


@pytest.mark.parametrize("name", ["chain_sum", "arc_agi", "prime_factorization", "basic_arithmetic"])
def test_reasoning_gym_scores_its_own_answers(name: str) -> None:
    extra = gym_extra(name, index=1)
    assert judge("reasoning-gym", None, extra["answer"] + "\n", extra) == 1
    assert judge("reasoning-gym", None, f"I think <answer>{extra['answer']}</answer> it is", extra) == 1
    assert judge("reasoning-gym", None, "I give up", extra) < 0.2


def test_reasoning_gym_scores_by_the_options_of_the_data() -> None:
    """By puzzle24's own options the numbers go up to 10."""
    assert judge("reasoning-gym", None, "10 + 10 + 2 + 2", gym_extra("puzzle24")) == 1
    assert judge("reasoning-gym", None, "10 + 10 + 2 + 2", gym_extra("puzzle24", max_value=8)) < 0.1


@pytest.mark.parametrize("name", ["exact", "number", "math"])
def test_a_task_without_a_reference_is_an_error_and_no_zero(name: str) -> None:
    with pytest.raises(RewardError, match="has no reference answer"):
        judge(name, None, "5")


def test_references_that_are_none() -> None:
    with pytest.raises(RewardError, match="no number in its reference"):
        judge("number", "none", "5")
    with pytest.raises(RewardError, match="needs a source reasoning-gym:NAME"):
        judge("reasoning-gym", "5", "5")


def test_an_answer_without_a_number_is_unparseable() -> None:
    number = resolve(parse_judge("number")[0])
    for text in ("none", "7" * 1000):
        judged = number(Task("t", "", [], "5"), text)
        assert (judged.reward, judged.reason) == (0.0, JudgeReason.UNPARSEABLE)


def message_of(judge: JudgeSetting) -> str:
    with pytest.raises(ConfigError) as caught:
        check(judge)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_unknown_judges(tmp_path: Path) -> None:
    assert "did you mean exact?" in message_of("exakt")
    assert f"use one of {', '.join(BUILT_IN)}, or FILE.py:FUNCTION" in message_of("nothing like it")
    assert "must be FILE.py:FUNCTION" in message_of("reasoning-gym:chain_sum")
    (tmp_path / "rewards.py").touch()
    assert "did you mean rewards.py?" in message_of(f"{tmp_path}/reward.py:reward")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def rewards(task, text): pass", "has no function reward; did you mean rewards?"),
        ("def other(task, text):\n    def reward(task, text): pass", "has no function reward"),
        ("def reward(task, text)\n", "mine.py:1: not valid Python: expected ':'"),
        ("async def reward(text): pass", "mine.py:1: reward must take two arguments"),
        ("\ndef reward(text): pass", "mine.py:2: reward must take two arguments"),
        ("def reward(task, text, more): pass", "must take two arguments"),
        ("def reward(task, text, *, more): pass", "must take two arguments"),
    ],
)
def test_mistakes_in_a_users_file(tmp_path: Path, source: str, message: str) -> None:
    (tmp_path / "mine.py").write_text(source)
    assert message in message_of(f"{tmp_path}/mine.py:reward")


@pytest.mark.parametrize(
    "source",
    [
        "def reward(task, text): raise SystemExit",
        "def reward(*args, **more): pass",
        "def reward(task, text, scale=1.0): pass",
        "try:\n    from fast import reward\nexcept ImportError:\n    def reward(task, text): pass",
        "import other\nreward = other.make()",
        "from other import *",
        "class reward:\n    pass",
        "raise SystemExit\ndef reward(task, text): pass",
    ],
)
def test_checking_runs_nothing_of_a_users_file(tmp_path: Path, source: str) -> None:
    (tmp_path / "mine.py").write_text(source)
    check(f"{tmp_path}/mine.py:reward")
