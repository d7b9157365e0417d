"""Runs that are killed and go on, with every real process: the same weights as a run that was never killed."""

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from freerun.commands.export import export
from freerun.control.state import read_state
from freerun.core import ConfigError, DataError
from freerun.core.groups import Position, Tally
from freerun.core.state import RunState
from freerun.observe.folder import JsonLines, RunFolder
from freerun.observe.records import read_evals, read_steps
from freerun.observe.timeline import read_timeline
from freerun.run import training
from freerun.run.prepare import Prepared
from freerun.run.resume import how_to_go_on, load_run, resume
from freerun.run.start import Start, create_folder
from freerun.train.checkpoint_folder import CONTROL, TENSORS, CheckpointFolder
from tests.cli.test_stopping import descendants
from tests.observe.runs import a_step, an_eval
from tests.run.test_train import prepared
from tests.typed import freerun

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

EXACT = (
    "control.groups_per_step=1", "control.max_staleness=0", "rollout.max_new_tokens=3", "train.minibatches=2",
    "train.warmup_steps=4", "train.weight_decay=0.1", "data.limit=4", "control.skip_solved=2",
    "evaluate.pass_reward=0",
)  # fmt: skip
"""One request at a time: with several, the company an answer keeps in a forward pass depends on timing, and so does
rounding."""
JUDGE = """
def anything(task, text):
    return sum(map(ord, text)) % 7 / 7
"""


FREERUN = (sys.executable, "-m", "freerun.cli.main")


def kill_in_mid_run(run: Prepared, folder: Path, command: str = "train") -> tuple[int, int]:
    """Start the run as a user would; kill -9 all its processes when steps after a checkpoint are done.

    Returns the newest checkpoint's step and the last step."""
    (folder / "run.yaml").write_text(run.config.model_dump_json())
    left = RunFolder(folder / "runs" / run.config.name)
    going = subprocess.Popen([*FREERUN, command, str(folder / "run.yaml")], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    try:
        while not 0 < max(CheckpointFolder(left.checkpoints).finished(), default=0) < len(steps_of(left)):
            assert going.poll() is None
            assert time.monotonic() < deadline
            select.select([], [], [], 0.01)
    finally:
        for pid in [going.pid, *descendants(going.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        going.wait()
    return max(CheckpointFolder(left.checkpoints).finished()), steps_of(left)[-1]


def steps_of(folder: RunFolder) -> list[int]:
    """Those that have a whole line."""
    lines = folder.metrics.read_text().splitlines(keepends=True) if folder.metrics.exists() else []
    return [json.loads(line)["step"] for line in lines if line.endswith("\n")]


def weights(folder: RunFolder) -> dict[str, torch.Tensor]:
    return load_file(folder.checkpoints / "last" / "model.safetensors")


def test_a_killed_run_goes_on_to_the_same_weights_bit_for_bit(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text(JUDGE)
    exact = [*EXACT, f"reward.judge={tmp_path / 'judge.py'}:anything"]
    endless = prepared(tmp_path, *exact, "name=killed", "train.save_every=3", "control.steps=100000")
    saved, done = kill_in_mid_run(endless, tmp_path)
    assert saved % 3 == 0
    assert done >= saved
    folder = RunFolder(tmp_path / "runs" / "killed")
    (folder.checkpoints / "step-1000.unfinished").mkdir()
    said = freerun("resume", folder.path, f"control.steps={saved + 3}").stdout
    assert f"goesonfrom{folder.checkpoints / f'step-{saved}'}" in "".join(said.split())
    assert f"done: {saved + 3} steps" in said

    assert steps_of(folder) == list(range(1, saved + 4))
    times = [record.time_s for record in read_steps(folder.metrics)]
    assert times == sorted(times)
    assert f"{saved + 3} steps" in folder.report.read_text()
    goes_on = f"goes on from {folder.checkpoints}/step-{saved}"
    assert any(event["name"].startswith(goes_on) for event in read_timeline(folder.timeline))
    assert list(CheckpointFolder(folder.checkpoints).finished())[-1] == saved + 3
    assert not list(folder.checkpoints.glob("*.unfinished"))
    assert len(read_state(folder.checkpoints / f"step-{saved + 3}" / CONTROL).resting) == 4, "all pass, and sit out"
    assert [record.solved for record in read_steps(folder.metrics)] == [1, 2, 3, *[4] * saved]
    with pytest.raises(ConfigError, match=rf"is complete: {saved + 3} steps are done; raise control\.steps"):
        resume(folder.path, [])

    resumed = weights(folder)
    run = prepared(tmp_path, *exact, "name=unbroken", f"control.steps={saved + 3}")
    whole = asyncio.run(training.train(run))
    unbroken = weights(whole.folder)
    assert all(torch.equal(resumed[key], unbroken[key]) for key in unbroken)
    assert [s.reward_mean for s in whole.steps] == [s.reward_mean for s in read_steps(folder.metrics)]
    start_weights = load_file(tmp_path / "model" / "model.safetensors")
    assert max((resumed[key] - start_weights[key]).abs().max().item() for key in resumed) > 0.01

    exported = export(folder.path, tmp_path / "exported")
    assert exported.name == f"step-{saved + 3}"
    again = load_file(tmp_path / "exported" / "model.safetensors")
    assert all(torch.equal(again[key], resumed[key]) for key in resumed)


def folder_with(run: Prepared, *states: RunState) -> RunFolder:
    """A run's folder with checkpoints that nobody will load."""
    folder = create_folder(run)
    for state in states:
        checkpoint = folder.checkpoints / f"step-{state.version}"
        checkpoint.mkdir(parents=True)
        (checkpoint / CONTROL).write_text(state.to_json())
        (checkpoint / TENSORS).touch()
    return folder


FAILS_LATER = """
from pathlib import Path
ASKED = Path(__file__).with_name("asked")

def anything(task, text):
    with ASKED.open("a") as asked:
        asked.write("x")
    assert ASKED.stat().st_size < 100, "the judge is out of order"
    return sum(map(ord, text)) % 7 / 7
"""


def test_a_run_that_fails_on_its_way_keeps_what_it_has_learned(tmp_path: Path) -> None:
    """Though it was to save its last step only."""
    (tmp_path / "judge.py").write_text(FAILS_LATER)
    how = ("control.groups_per_step=2", f"reward.judge={tmp_path / 'judge.py'}:anything")
    run = prepared(tmp_path, *how, "control.steps=100000")
    (tmp_path / "run.yaml").write_text(run.config.model_dump_json())
    ended = freerun("train", tmp_path / "run.yaml")
    folder = RunFolder(tmp_path / "runs" / "test")
    step = steps_of(folder)[-1]
    assert ended.returncode == 2, "the judge is the user's"
    assert f"stopped; step {step} is saved; go on with: freerun resume {folder.path}" in ended.stderr
    assert "the judge is out of order" in ended.stderr
    assert list(CheckpointFolder(folder.checkpoints).finished()) == [step]
    assert weights(folder)
    resume(folder.path, [])


def test_what_cannot_be_resumed_says_why_in_one_line(tmp_path: Path) -> None:
    run = prepared(tmp_path, "control.steps=9", "control.epochs=2")
    data = run.stream(None).fingerprint
    folder = folder_with(run)
    with pytest.raises(ConfigError, match=r"holds no checkpoint: set train\.save_every"):
        resume(folder.path, [])
    with pytest.raises(ConfigError, match=r"is not a run's folder: it has no config\.yaml"):
        resume(tmp_path / "nowhere", [])
    assert (
        how_to_go_on(folder)
        == f"stopped before a step was saved: what was learned is gone; its figures are in {folder.path}"
    )

    folder = folder_with(run, RunState(4, data=data), RunState(8, position=Position(2, 0), data=data))
    with pytest.raises(ConfigError, match=r"its data is used up; raise control\.epochs"):
        resume(folder.path, [])
    assert resume(folder.path, ["control.epochs=3"])[1].checkpoint == folder.checkpoints / "step-8"
    with pytest.raises(ConfigError, match=r"8 steps are done; raise control\.steps"):
        resume(folder.path, ["control.steps=8"])
    for changed in ("data.limit=30", "seed=5", "data.shuffle=false"):
        with pytest.raises(DataError, match=r"have changed since .*step-8 was made"):
            resume(folder.path, ["control.epochs=3", changed])
    with pytest.raises(ConfigError, match="unknown key"):
        resume(folder.path, ["control.stepps=9"])
    assert how_to_go_on(folder) == f"stopped; step 8 is saved; go on with: freerun resume {folder.path}"


def test_a_folder_is_put_back_to_its_checkpoint_and_is_ours_alone(tmp_path: Path) -> None:
    run = prepared(tmp_path, "control.steps=9")
    tally = Tally(16, judgements={"timeout": 1})
    state = RunState(2, 17, Position(0, 17), [Position(0, 16)], run.stream(None).fingerprint, tally)
    folder = folder_with(run, state)
    for file, records in (
        (folder.metrics, [a_step(1), a_step(2), a_step(3)]),
        (folder.evals, [an_eval(0), an_eval(3)]),
    ):
        with JsonLines(file) as lines:
            for record in records:
                lines.append(record)
    again, start = resume(folder.path, ["control.steps=20"])
    assert start == Start(folder, state, folder.checkpoints / "step-2", goes_on=True)
    with start.opened():
        assert [record.step for record in read_steps(folder.metrics)] == [1, 2, 3], "it has not begun"
        with pytest.raises(ConfigError, match="is in use: its run is still going"), start.opened():
            pass
        assert load_run(folder)[0].control.steps == 9
        start.begun(again)
        assert [record.step for record in read_steps(folder.metrics)] == [1, 2]
        assert [record.step for record in read_evals(folder.evals)] == [0]
    config, origins = load_run(folder)
    assert config.control.steps == 20
    assert origins == run.origins, "where values came from is not lost"
    assert read_state(start.checkpoint / CONTROL) == state  # type: ignore[operator]


def test_an_exported_checkpoint_is_an_ordinary_model(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from freerun.models.attention import PackedAttention
    from freerun.train.checkpoint import CheckpointWriter
    from freerun.train.learner import Learner
    from tests.train.test_learner import random_batch

    run = prepared(tmp_path)
    learner = Learner.from_folder(tmp_path / "model", run.config.train, 1.0, 0)
    batch = random_batch(0)
    for sample in batch.samples:
        sample.tokens = sample.tokens % 9
    learner.step(batch)
    folder = create_folder(run)
    writer = CheckpointWriter(keep=2)
    writer.begin(learner, folder.checkpoints, "{}")
    writer.finish()

    out = tmp_path / "out"
    assert export(folder.checkpoints / "step-1", out) == folder.checkpoints / "step-1"
    theirs = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    tokens = torch.tensor([3, 4, 5, 8, 2])
    with torch.no_grad():
        ours = learner.decoder.logits(learner.decoder(tokens, torch.arange(5), PackedAttention([5])))
        torch.testing.assert_close(theirs(tokens[None]).logits[0], ours, atol=1e-5, rtol=1e-5)
    assert AutoTokenizer.from_pretrained(out).encode("ab>") == [2, 3, 8]
    with pytest.raises(ConfigError, match="out is not empty"):
        export(folder.path, out)
    with pytest.raises(ConfigError, match="is not a run's folder"):
        export(tmp_path / "model", tmp_path / "other")
