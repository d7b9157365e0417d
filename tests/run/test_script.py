"""Runs that a script starts: `freerun.train` with objects of its own, in a script, in a notebook, interrupted."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import freerun
from freerun import ConfigError, Conversation, Observer, RolloutClient, StepRecord, Task, Trajectory
from freerun.config.load import load_config
from freerun.models.tiny import make_model
from freerun.rollouts.load import load_own
from freerun.run.script import judge_setting, rollout_setting


def made(folder: Path, **sections: Any) -> dict[str, Any]:
    make_model(folder / "model", "abcdef>", seed=1, hidden=32)
    rows = [{"prompt": f"{letter}>", "answer": letter} for letter in "abcdef" * 10]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "runs": str(folder / "runs"),
        "model": {"path": str(folder / "model")},
        "data": {"source": str(folder / "train.jsonl"), "max_prompt_tokens": 8},
        "rollout": {"group_size": 4, "max_new_tokens": 4},
        "control": {"steps": 3, "groups_per_step": 4},
        "engine": {"cache_tokens": 4096},
    } | sections


@dataclass
class Stumbles:
    """Some tasks raise; the members of the others bring rewards of their own."""

    every: int = 3

    async def __call__(self, task: Task, client: RolloutClient) -> list[Trajectory]:
        if str(task.answer) in "ad"[: self.every]:
            raise LookupError(f"no {task.answer} here")
        return await client.each_member(task, self.member)

    async def member(self, chat: Conversation) -> float | None:
        said = await chat.reply(max_tokens=2)
        return float(str(chat.task.answer) in said) if len(said) % 2 else None


def judges(task: Task, text: str) -> float:
    return 0.5


class Watches(Observer):
    def __init__(self) -> None:
        self.steps: list[int] = []
        self.notes: list[str] = []

    def step(self, record: StepRecord) -> None:
        self.steps.append(record.step)

    def note(self, text: str) -> None:
        self.notes.append(text)


class Fails(Observer):
    def step(self, record: StepRecord) -> None:
        raise RuntimeError("an observer's own mistake")


async def test_with_objects_where_an_event_loop_runs_already(tmp_path: Path) -> None:
    """As in a notebook: this test's loop is running, and `train` does not await."""
    watches = Watches()
    outcome = freerun.train(made(tmp_path), rollout=Stumbles(), judge=judges, observers=[watches, Fails])
    assert [record.step for record in outcome.steps] == watches.steps == [1, 2, 3]
    last = outcome.steps[-1]
    assert last.dropped["rollout_error"] > 0
    assert set(last.judgements) <= {"ok", "own"}
    assert last.judgements["ok"] > 0, "judged in a worker process"
    said = [note for note in watches.notes if "LookupError" in note]
    assert len(said) == 1, "once"
    assert f"{__file__}:" in said[0]
    assert any("the observer Fails failed" in note for note in watches.notes)
    config, _ = load_config(outcome.folder.config)
    assert config.reward.judge == f"{__name__}:judges"
    assert load_own(config.rollout) == Stumbles(3), "so that the run can be resumed"


SCRIPT = """
import sys
import freerun

def reward(task, text):
    return float(len(text))

class Counts(freerun.Observer):
    def step(self, record):
        print("step", record.step, flush=True)

print("up to here", flush=True)
freerun.train(sys.argv[1], judge=reward, observers=[Counts()])
print("done")
"""


def start(folder: Path, **sections: Any) -> "subprocess.Popen[str]":
    """A script that does not guard its main part."""
    file = folder / "run.yaml"
    file.write_text(json.dumps(made(folder, **sections)))
    (folder / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "script.py", file], cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_interrupting_a_script_saves_what_was_done(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """It has no guard: worker processes import it as far as its call of train, and its main part runs once."""
    lines = []
    with start(tmp_path, control={"steps": 100_000, "groups_per_step": 4}, train={"save_every": 1000}) as script:
        assert script.stdout is not None
        for line in script.stdout:
            lines.append(line)
            if line == "step 2\n":
                break
        script.send_signal(number)
        began_s = time.monotonic()
        _, errors = script.communicate(timeout=60)
    assert script.returncode == code, errors
    assert [line for line in lines if line in ("up to here\n", "step 1\n")] == ["up to here\n", "step 1\n"]
    assert "go on with: freerun resume" in errors
    assert time.monotonic() - began_s < 30


def test_what_worker_processes_cannot_import_is_refused_in_one_line() -> None:
    def inner(task: Task, text: str) -> float:
        return 0.0

    for judge in (lambda task, text: 0.0, inner, [judges, inner], {"name": inner}):
        with pytest.raises(ConfigError) as caught:
            judge_setting(judge)
        assert f"({__file__}:" in str(caught.value)
        assert "define it at the top level of a file" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_judges_as_a_file_would_name_them() -> None:
    assert judge_setting("math") == "math"
    assert judge_setting([judges, {"name": "format", "weight": 0.2}]) == [
        f"{__name__}:judges",
        {"name": "format", "weight": 0.2},
    ]
    assert judge_setting({"name": judges, "weight": 2}) == {"name": f"{__name__}:judges", "weight": 2}
    assert judge_setting(Stumbles(every=1)) == {"name": f"{__name__}:Stumbles", "every": 1}


def test_a_rollout_that_has_no_name_elsewhere_can_be_used_but_not_resumed() -> None:
    class Inner:
        async def __call__(self, task: Task, client: RolloutClient) -> list[Trajectory]:
            return []

    setting = rollout_setting(Inner())
    config, _ = load_config(None, ["model.path=x", "data.source=x", f"rollout.kind='{setting['rollout__kind']}'"])
    with pytest.raises(ConfigError, match="there is no rollout"):
        load_own(config.rollout)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ({"rollout": judges}, "is no rollout: it must be `async def rollout"),
        ({"observers": [judges]}, "is no observer: derive its class from freerun.Observer"),
        ({"judge": "exakt"}, "did you mean exact?"),
        ({"config": {"modell": {}}}, "unknown key modell; did you mean model?"),
        ({"config": "nowhere.yaml"}, "there is no file nowhere.yaml"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, call: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        freerun.train(**{"config": made(tmp_path)} | call)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
