"""Judges that ask for the whole sample, in their worker processes; and those that packages bring."""

from pathlib import Path
from typing import Any

import pytest

from freerun.core import ConfigError, FinishReason, Task
from freerun.machine.frames import frame
from freerun.rewards.base import JudgedSample, JudgeReason, Verdict
from freerun.rewards.config import RewardConfig
from freerun.rewards.protocol import Request
from freerun.rewards.service import JudgeService
from tests.core.test_resolve import install

TASK = Task("t", "?", [1], "5")
SOURCE = """
from dataclasses import dataclass
import functools

def longest(task, sample):
    return float(sample.num_tokens == max(other.num_tokens for other in sample.group))

def whole(sample, scale=1):
    assert sample.group[sample.index].text == sample.text
    assert sample.finish == "length" and not sample.group[0].group
    return scale * len(sample.messages)

async def everything(task, text, *, sample):
    assert text == sample.text and task.answer == "5"
    return sample.index

def text_only(task, text):
    return len(text)

@dataclass
class Options:
    factor: float = 1.0
    def __call__(self, task, text, sample):
        return self.factor * sample.index

def decorated(function):
    @functools.wraps(function)
    def inner(*args, **more):
        return function(*args, **more)
    return inner

@decorated
def wrapped(sample):
    return sample.index

def more(sample, other): pass
def positional(sample, /): pass
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(SOURCE)
    return file


def group() -> list[str | JudgedSample]:
    said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "x"}]
    return [JudgedSample("x" * n, said[: n % 2 + 1], FinishReason.LENGTH, num_tokens=n) for n in range(3)]


async def rewards(judge: Any, answers: list[str | JudgedSample]) -> list[float | None]:
    async with JudgeService(RewardConfig(judge=judge, workers=2)) as service:
        verdicts = await service.judge_all(TASK, answers)
    assert all(verdict.reason is JudgeReason.OK for verdict in verdicts), verdicts
    return [verdict.reward for verdict in verdicts]


@pytest.mark.parametrize(
    ("judge", "expected"),
    [
        ("longest", [0, 0, 1]),
        ("whole", [1, 2, 1]),
        ({"name": "whole", "scale": 2}, [2, 4, 2]),
        ("everything", [0, 1, 2]),
        ("wrapped", [0, 1, 2]),
        ({"name": "Options", "factor": 3}, [0, 3, 6]),
        (["longest", "text_only"], [0, 1, 3]),
        (["longest", {"name": "text_only", "workers": 1}], [0, 1, 3]),
    ],
)
async def test_judges_see_what_they_ask_for(file: Path, judge: Any, expected: list[float]) -> None:
    def named(one: Any) -> Any:
        return one | {"name": f"{file}:{one['name']}"} if isinstance(one, dict) else f"{file}:{one}"

    setting = [named(one) for one in judge] if isinstance(judge, list) else named(judge)
    assert await rewards(setting, group()) == expected


async def test_a_text_is_a_sample_of_nothing_else(file: Path) -> None:
    assert await rewards(f"{file}:everything", ["a", "b"]) == [0, 1]


async def test_samples_are_sent_only_to_those_who_ask(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Request] = []

    def remember(request: Request) -> bytes:
        sent.append(request)
        return frame(request)

    monkeypatch.setattr("freerun.rewards.service.frame", remember)
    for judge, whole in ((f"{file}:text_only", 0), (f"{file}:longest", 3)):
        sent.clear()
        await rewards(judge, group())
        assert sum(bool(request.group) for request in sent) == whole


@pytest.mark.parametrize(
    ("judge", "says"),
    [
        ("more", "more must take two arguments: `def more(task, text) -> float`, or a `sample`"),
        ("positional", "positional must take two arguments"),
        ({"name": "whole", "scal": 2}, 'whole has no argument "scal"; did you mean scale?'),
        ({"name": "whole", "text": "x"}, 'whole has no argument "text"'),
    ],
)
def test_mistakes(file: Path, judge: Any, says: str) -> None:
    setting = judge | {"name": f"{file}:{judge['name']}"} if isinstance(judge, dict) else f"{file}:{judge}"
    with pytest.raises(ConfigError) as caught:
        RewardConfig(judge=setting).check()
    assert says in str(caught.value)


async def test_a_judge_of_an_installed_package_by_its_name_and_by_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers, processes of their own, find it where this process does."""
    install(tmp_path, "brings_a_judge", "[freerun.judges]\nlength-of = brings_a_judge.parts:reward\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("length-of", "brings_a_judge.parts:reward"):
        async with JudgeService(RewardConfig(judge=name, workers=1)) as service:
            assert await service.judge(TASK, "four") == Verdict(4.0, JudgeReason.OK)
