"""Distillation with every real process: a policy becomes its teacher, a folder or a server; what is no teacher."""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import pytest

from freerun.config.load import load_config
from freerun.core import ConfigError
from freerun.core.observer import Observer
from freerun.core.records import StepRecord
from freerun.machine.processes import Child, ChildProcess, Processes
from freerun.models.tiny import make_model
from freerun.observe.records import read_steps
from freerun.run import training
from freerun.run.prepare import prepare_sft
from freerun.run.supervised import sft
from tests.run.test_train import prepared

SETTINGS = (
    "train.objective=distill", "rollout.group_size=2", "rollout.max_new_tokens=3", "control.groups_per_step=16",
    "control.max_staleness=2",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a teacher that repeats the prompt's letter, and ends there."""
    there = tmp_path_factory.mktemp("distill")
    run = prepared(there, "name=teacher", "control.steps=120", how=prepare_sft)
    asyncio.run(sft(run))
    return there


def teacher_of(folder: Path) -> Path:
    return folder / "runs" / "teacher" / "checkpoints" / "last"


async def test_a_policy_becomes_its_teacher(folder: Path) -> None:
    run = prepared(folder, *SETTINGS, "name=student", f"train.teacher={teacher_of(folder)}", "control.steps=80")
    assert (run.config.reward.judge, run.config.train.advantages) == ("teacher", "none")
    outcome = await training.train(run)
    steps = read_steps(outcome.folder.metrics)
    assert steps[0].trainer["teacher_kl"] > 1.0
    last = [record.trainer["teacher_kl"] for record in steps[-5:]]
    assert sum(last) / 5 < 0.2 * steps[0].trainer["teacher_kl"]
    rewards = [record.reward_mean for record in steps[-5:]]
    assert sum(rewards) / 5 > 0.4 * steps[0].reward_mean, "the reward is the teacher's"
    assert max(record.staleness_max for record in steps) > 0, "it was asynchronous"
    assert (outcome.folder.logs / "teacher.log").is_file()


class Killer(Observer):
    """Ends the teacher's process after some steps."""

    def __init__(self, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self._at = at
        self._teachers: list[Child] = []
        self.notes: list[str] = []
        begin = Processes.begin

        async def noted(processes: Processes, name: str, *given: Any, **more: Any) -> Child:
            child = await begin(processes, name, *given, **more)
            self._teachers += [child] if name == "teacher" else []
            return child

        monkeypatch.setattr(Processes, "begin", noted)

    def step(self, record: StepRecord) -> None:
        if record.step == self._at:
            (teacher,) = self._teachers
            assert isinstance(teacher, ChildProcess)
            teacher._signal(signal.SIGKILL)

    def note(self, text: str) -> None:
        self.notes.append(text)


async def test_a_teacher_that_is_killed_comes_back_and_a_judge_shows_what_is_learned(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = prepared(
        *(folder, *SETTINGS, "name=killed", f"train.teacher={teacher_of(folder)}", "control.steps=30"),
        *("reward.judge=exact", "evaluate.every=30"),
    )
    killer = Killer(5, monkeypatch)
    outcome = await training.train(run, guests=[killer])
    assert any("the teacher is lost" in note for note in killer.notes)
    assert any("the teacher is back" in note for note in killer.notes)
    steps = read_steps(outcome.folder.metrics)
    assert len(steps) == 30
    assert steps[-1].trainer["teacher_kl"] < 0.5 * steps[0].trainer["teacher_kl"]
    assert 0 <= steps[0].reward_mean <= 1, "the judge's"
    assert [evaluation.pass_at_1 > 0.3 for evaluation in outcome.evaluations][-1]


async def test_a_server_teaches_as_well(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-m", "freerun.cli.main", "serve", str(teacher_of(folder)), "--score", "--port", "0"]
    monkeypatch.setenv("FREERUN_TEACHER_KEY", "s3cret")
    server = await asyncio.create_subprocess_exec(*command, "--api-key", "s3cret", stdout=PIPE)
    try:
        assert server.stdout is not None
        line = (await server.stdout.readline()).decode()
        assert "scoring by last at http://127.0.0.1:" in line
        url = line.split(" at ")[1].split()[0]
        told = f"train.teacher={url}"
        outcome = await training.train(prepared(folder, *SETTINGS, told, "name=served", "control.steps=3"))
        assert len(read_steps(outcome.folder.metrics)) == 3
        monkeypatch.setenv("FREERUN_TEACHER_KEY", "wrong")
        with pytest.raises(ConfigError, match=r"train\.teacher: the teacher at .* answered 401"):
            await training.train(prepared(folder, *SETTINGS, told, "name=refused", "control.steps=3"))
    finally:
        server.terminate()
        await server.wait()


def refusal(folder: Path, *settings: str) -> str:
    with pytest.raises(ConfigError) as refused:
        prepared(folder, *settings)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_what_is_no_teacher_is_said_in_a_line(folder: Path, tmp_path: Path) -> None:
    make_model(tmp_path / "other", "abcdefg>", seed=0)
    told = f"train.teacher={tmp_path / 'other'}"
    assert "has another tokenizer (10 tokens) than model.path (9): a teacher must have the same tokens" in refusal(
        folder, *SETTINGS, told
    )
    assert "train.teacher: " in refusal(folder, *SETTINGS, f"train.teacher={tmp_path}")
    assert "distill needs a teacher: set train.teacher to a model's folder or a server's URL" in refusal(
        folder, *SETTINGS
    )
    good = f"train.teacher={teacher_of(folder)}"
    assert "train.teacher does nothing with decoupled_ppo" in refusal(folder, good)
    assert "train.teacher: there is no folder localhost:1; give one" in refusal(
        folder, *SETTINGS, "train.teacher=localhost:1"
    )
    assert "held-out answers need a judge" in refusal(folder, *SETTINGS, good, "evaluate.every=3")
    assert "reward.judge is teacher, but nobody teaches" in refusal(folder, "reward.judge=teacher")
    assert "train.advantages is none, so nothing is learned" in refusal(folder, "train.advantages=none")


def test_a_judge_with_options_is_not_taken_for_none() -> None:
    file = ["model.path=m", "data.source=d", "train.objective=distill", "train.teacher=t"]
    judge = "reward.judge={name: length, at_most: 3}"
    config, _ = load_config(None, [*file, judge])
    assert config.reward.parts[0].name == "length"
