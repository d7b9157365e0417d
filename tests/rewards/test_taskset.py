"""Tasksets of the verifiers package: their tasks, judged by their own rewards."""

import json
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from freerun.core import ConfigError, DataError, RewardError, Task
from freerun.data.config import DataConfig
from freerun.data.sources import read_source
from freerun.rewards.config import RewardConfig
from freerun.rewards.service import JudgeService
from freerun.rewards.taskset import verifiers

SUMS = """
    import verifiers.v1 as vf

    class SumData(vf.TaskData):
        answer: int

    class SumTask(vf.Task[SumData]):
        @vf.reward
        async def right(self, trace):
            return float(trace.last_reply == str(self.data.answer))

        @vf.reward(weight=0.5)
        async def brief(self, task, trace, runtime=None):
            return {"short": float(len(trace.last_reply) < 5), "one": float(trace.num_turns == 1)}

    class Config(vf.TasksetConfig):
        largest: int = 4

    class Sums(vf.Taskset[SumTask, Config]):
        def load(self):
            for n in range(self.config.largest):
                system = "Be brief." if n == 1 else None
                yield SumTask(SumData(id=f"sum-{n}", prompt=f"{n} + 1?", system_prompt=system, answer=n + 1))

    __all__ = ["Sums"]
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # for workers

    def write(name: str, source: str) -> None:
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))

    return write


def rows(name: str, **knobs: Any) -> list[dict[str, Any]]:
    return read_source(DataConfig(source=f"verifiers:{name}", **knobs)).rows


def task(row: dict[str, Any]) -> Task:
    return Task("t", "", [], None, json.loads(json.dumps(row)))  # as data/ leaves it


def test_a_task_scores_by_its_own_rewards(package: Callable[[str, str], None]) -> None:
    package("our_sums", SUMS)
    made = rows("our-sums", options={"largest": 3})
    assert [row["prompt"] for row in made] == [
        "0 + 1?",
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}],
        "2 + 1?",
    ]
    assert made[1]["id"] == "sum-1"
    assert verifiers(task(made[1]), "2") == 2.0
    assert verifiers(task(made[1]), "<think>1 + 1 is 2, I think</think>\n2") == 2.0
    assert verifiers(task(made[2]), "two or so") == 0.5


async def test_in_the_service(package: Callable[[str, str], None]) -> None:
    package("our_sums", SUMS)
    made = rows("our_sums", limit=3)
    async with JudgeService(RewardConfig(judge="verifiers")) as service:
        assert [(await service.judge(task(row), "3")).reward for row in made] == [1.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("runtime=None", "runtime", "need a machine to work on; what is supported is one prompt, one answer"),
        (
            "class SumTask(vf.Task[SumData]):",
            "class SumTask(vf.Task[SumData]):\n    NEEDS_CONTAINER = True",
            "a machine",
        ),
        (
            "class SumTask(vf.Task[SumData]):",
            "class SumTask(vf.Task[SumData]):\n    async def setup(self, trace, runtime): pass",
            "a machine",
        ),
        (
            "class Sums(vf.Taskset[SumTask, Config]):",
            "class Sums(vf.Taskset[SumTask, Config]):\n    toolsets = classmethod(lambda cls, config: [1])",
            "need tools",
        ),
        ('prompt=f"{n} + 1?"', "prompt=None", "task 0 of verifiers:other_sums has no prompt of text"),
        ("for n in range(self.config.largest):", "for n in iter(int, 1):", ""),
        ("class Sums", "class Sums:\n    pass\nclass Others", "verifiers has no taskset other_sums here"),
    ],
)
def test_what_is_no_prompt_and_answer_is_refused(
    package: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, old: str, new: str, says: str
) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "other_sums", raising=False)
    source = textwrap.dedent(SUMS)
    assert old in source
    package("other_sums", source.replace(old, new))
    if not says:
        assert len(rows("other_sums", limit=2)) == 2
        return
    with pytest.raises(DataError) as caught:
        rows("other_sums")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_mistakes(package: Callable[[str, str], None]) -> None:
    package("our_sums", SUMS)
    with pytest.raises(DataError, match=r"verifiers:our_sums refuses its options: .*largest"):
        rows("our_sums", options={"largest": "many"})
    with pytest.raises(DataError, match="verifiers has no taskset no_such_taskset here"):
        rows("no_such_taskset")
    with pytest.raises(RewardError, match="needs a source verifiers:NAME"):
        verifiers(Task("t", "", []), "5")


def test_without_the_package_the_line_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verifiers", None)
    with pytest.raises(ConfigError, match="the judge verifiers needs a library: pip install verifiers"):
        RewardConfig(judge="verifiers").check()
