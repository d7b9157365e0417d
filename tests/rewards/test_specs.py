"""What `reward.judge` may say, and the judges of an answer's form."""

from pathlib import Path
from typing import Any

import pytest

from freerun.config.load import load_config
from freerun.config.text import dump
from freerun.core import ConfigError, Task
from freerun.rewards.config import RewardConfig
from freerun.rewards.judges import check, resolve
from freerun.rewards.pools import by_pool
from freerun.rewards.spec import JudgeSpec, parse_judge

TASK = Task("t", "", [])


def judge(spec: dict[str, Any], text: str) -> float:
    check(spec)
    return float(resolve(parse_judge(spec)[0])(TASK, text))


def test_one_or_many() -> None:
    assert parse_judge("math") == [JudgeSpec("math")]
    assert parse_judge({"name": "math", "weight": 2}) == [JudgeSpec("math", 2.0)]
    assert parse_judge(["math", {"name": "format", "weight": "1e-1", "tags": ["a"], "workers": 2}]) == [
        JudgeSpec("math"),
        JudgeSpec("format", 0.1, workers=2, options={"tags": ["a"]}),
    ]


def test_judges_without_settings_of_their_own_share_a_pool() -> None:
    parts = parse_judge(["math", {"name": "http", "url": "http://x"}, "exact", {"name": "number", "timeout_s": 1}])
    assert [[part.name for part in pool] for pool in by_pool(parts)] == [["math", "exact"], ["http"], ["number"]]
    assert [[part.name for part in pool] for pool in by_pool(parse_judge({"name": "exact", "cache": True}))] == [
        ["exact"]
    ]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ([], "an empty list"),
        (5, "reward.judge: 5 is neither a judge nor"),
        ("", "is neither a judge nor"),
        ({"weight": 1}, "is neither a judge nor {name: JUDGE"),
        ({"name": "math", "weight": "much"}, "the judge math: weight: Expected float, got str"),
        ({"name": "math", "workers": 0}, "the judge math: workers: Expected int >= 1"),
        ({"name": "math", "timeout_s": -1}, "the judge math: timeout_s: Expected float > 0"),
        (["math", ["exact"]], "['exact'] is neither"),
    ],
)
def test_mistakes_in_the_form_of_a_spec(spec: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RewardConfig(judge=spec)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"name": "math", "wieght": 1}, 'the judge math has no option "wieght"; did you mean weight?'),
        ({"name": "format"}, "the judge format: needs tags, such as [think, answer], or a pattern"),
        ({"name": "format", "pattern": "("}, "the judge format: pattern is not a regular expression: missing )"),
        ({"name": "format", "tags": "think"}, "the judge format: tags: Expected array, got str"),
        ({"name": "format", "tag": ["a"]}, 'has no option "tag"; did you mean tags?'),
        ({"name": "overlong", "limit": 5}, "the judge overlong: Object missing required field buffer"),
        ({"name": "overlong", "limit": 5, "buffer": 6}, "the judge overlong: needs 0 < buffer <= limit"),
        ({"name": "length", "unit": "miles"}, "the judge length: unit: Invalid enum value 'miles'"),
        ({"name": "lenght"}, 'there is no judge "lenght"'),
    ],
)
def test_mistakes_in_the_options(spec: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(["exact", spec])
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_options_of_a_users_function(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def reward(task, text, scale, *, offset=0): return scale * len(text) + offset")
    name = f"{file}:reward"
    assert judge({"name": name, "scale": 2, "offset": 1}, "abc") == 7
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"name": name}, "must take two arguments"),
        ({"name": name, "scale": 1, "ofset": 2}, 'mine.py:1: reward has no argument "ofset"; did you mean offset?'),
    ]
    for spec, says in mistakes:
        with pytest.raises(ConfigError) as caught:
            check(spec)
        assert says in str(caught.value)
    file.write_text("def reward(task, text, **more): return more['anything']")
    assert judge({"name": name, "anything": 3}, "") == 3


def test_lists_in_a_file_on_the_command_line_and_back(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "model: {path: m}\ndata: {source: d.jsonl}\n"
        "reward:\n  judge:\n    - math\n    - {name: format, weight: 0.2, tags: [think]}\n"
    )
    config, origins = load_config(file)
    assert config.reward.parts == [JudgeSpec("math"), JudgeSpec("format", 0.2, options={"tags": ["think"]})]
    assert config.reward.in_words == "math + 0.2 format"
    assert RewardConfig(judge=["exact", {"name": "length", "weight": -0.5}]).in_words == "exact - 0.5 length"
    file.write_text(dump(config, origins))
    assert load_config(file)[0] == config
    assert load_config(file, ["reward.judge=exact"])[0].reward.parts == [JudgeSpec("exact")]
    given = load_config(file, ["reward.judge={name: length, weight: -1e-3}"])[0]
    assert given.reward.parts == [JudgeSpec("length", -0.001)]
    file.write_text(dump(given, {}))
    assert load_config(file)[0] == given
    with pytest.raises(ConfigError, match="is neither a judge"):
        load_config(file, ["reward.judge=[1]"])


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("<think>a</think> b <answer>c</answer>", 1),
        ("<think>a</think><answer></answer>", 1),
        ("<think>a<answer>b</answer></think>", 0),
        ("<answer>c</answer><think>a</think>", 0),
        ("<think>a</think>", 0),
        ("<think>a</think><answer>b</answer><answer>c</answer>", 0),
        ("<think>a</think><answer>b", 0),
        ("", 0),
    ],
)
def test_tags(text: str, right: float) -> None:
    assert judge({"name": "format", "tags": ["think", "answer"]}, text) == right


def test_patterns() -> None:
    pattern = {"name": "format", "pattern": r"^Thought:.*\\boxed\{"}
    assert judge(pattern, "Thought:\n\nso\n\\boxed{5}") == 1
    assert judge(pattern, " Thought: \\boxed{5}") == 0
    both = {**pattern, "tags": ["b"]}
    assert judge(both, "Thought: <b></b> \\boxed{5}") == 1
    assert judge(both, "Thought: \\boxed{5}") == 0


def test_lengths() -> None:
    assert judge({"name": "length"}, "one two  three\n") == 3
    assert judge({"name": "length", "unit": "characters"}, "äöü") == 3
    assert judge({"name": "length", "at_most": 2}, "one two three") == 2
    overlong = {"name": "overlong", "limit": 10, "buffer": 4}
    rewards = [judge(overlong, "word " * n) for n in (0, 6, 7, 8, 10, 100)]
    assert rewards == [0, 0, -0.25, -0.5, -1, -1]
