"""Ctrl-C, SIGTERM and kill -9 on a real run: every process ends within 5 s, and the folder can be read."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from freerun.machine.scratch import memory_folder
from freerun.observe.records import read_steps
from freerun.train.checkpoint_folder import CheckpointFolder
from tests.run.test_train import prepared


def descendants(pid: int) -> set[int]:
    """Children, and theirs, from /proc."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found |= {int(child)} | descendants(int(child))
    return found


def start(folder: Path, command: str = "train") -> subprocess.Popen[str]:
    config = prepared(folder, "control.steps=100000", "evaluate.every=3").config
    file = folder / "run.yaml"
    file.write_text(config.model_dump_json())
    words = [sys.executable, "-m", "freerun.cli.main", command, str(file)]
    run = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    metrics = folder / "runs" / "test" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.read_text().count("\n") >= 3):
        assert run.poll() is None, run.communicate()[1]
        assert time.monotonic() < deadline
        select.select([], [], [], 0.02)
    return run


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_everything_ends_within_five_seconds(tmp_path: Path, number: signal.Signals) -> None:
    run = start(tmp_path)
    family = {pid: os.pidfd_open(pid) for pid in descendants(run.pid)}
    assert len(family) >= 4, "engine, evaluator, trainer, reward worker"
    began = time.monotonic()
    run.send_signal(number)
    _, errors = run.communicate(timeout=10)
    for pid, watched in family.items():
        left_s = max(0.0, 5 - (time.monotonic() - began))
        assert select.select([watched], [], [], left_s)[0], f"process {pid} is still there after 5 s"
        os.close(watched)
    assert time.monotonic() - began < 5
    folder = tmp_path / "runs" / "test"
    assert len(read_steps(folder / "metrics.jsonl")) >= 3
    if number is signal.SIGKILL:
        assert run.returncode == -number
        return
    assert run.returncode == 128 + number
    step = read_steps(folder / "metrics.jsonl")[-1].step
    last_words = f"stopped; step {step} is saved; go on with: freerun resume {folder}"
    assert errors.strip().splitlines()[-1] == last_words
    assert "Traceback" not in errors
    assert (folder / "report.html").is_file()
    assert (folder / "checkpoints" / "last" / "model.safetensors").is_file(), "what was learned is saved"
    assert list(CheckpointFolder(folder / "checkpoints").finished()) == [step]
    assert not list(memory_folder().glob(f"freerun-{run.pid}-*"))


def test_supervised_training_that_is_stopped_can_go_on(tmp_path: Path) -> None:
    run = start(tmp_path, "sft")
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=10)
    assert run.returncode == 128 + signal.SIGINT
    folder = tmp_path / "runs" / "test"
    step = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    assert errors.strip().splitlines()[-1] == f"stopped; step {step} is saved; go on with: freerun resume {folder}"
    assert list(CheckpointFolder(folder / "checkpoints").finished()) == [step]


def stopped_trainer(run: subprocess.Popen[str]) -> int:
    """Its trainer's pid, in the middle of what it does from now on."""
    for pid in descendants(run.pid):
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        if "trainer" in words:
            os.kill(pid, signal.SIGSTOP)
            return pid
    raise AssertionError("there is no trainer")


def interrupt(run: subprocess.Popen[str]) -> None:
    """Returns when it has said what it is still doing."""
    assert run.stderr
    run.send_signal(signal.SIGINT)
    while "Ctrl-C again to end without" not in run.stderr.readline():
        assert run.poll() is None


@pytest.mark.parametrize("command", ["train", "sft"])
def test_a_step_that_takes_long_is_finished_and_saved(tmp_path: Path, command: str) -> None:
    run = start(tmp_path, command)
    trainer = stopped_trainer(run)
    interrupt(run)
    os.kill(trainer, signal.SIGCONT)
    _, errors = run.communicate(timeout=20)
    folder = tmp_path / "runs" / "test"
    step = read_steps(folder / "metrics.jsonl")[-1].step
    assert errors.strip().splitlines()[-1] == f"stopped; step {step} is saved; go on with: freerun resume {folder}"
    assert list(CheckpointFolder(folder / "checkpoints").finished()) == [step]


def test_a_second_interruption_ends_it_without_the_step(tmp_path: Path) -> None:
    run = start(tmp_path, "sft")
    family = {pid: os.pidfd_open(pid) for pid in descendants(run.pid)}
    stopped_trainer(run)
    interrupt(run)
    began = time.monotonic()
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=10)
    assert time.monotonic() - began < 5
    for watched in family.values():
        assert select.select([watched], [], [], 5)[0]
        os.close(watched)
    folder = tmp_path / "runs" / "test"
    assert errors.strip().splitlines()[-1].startswith("stopped before a step was saved: what was learned is gone")
    assert not list(CheckpointFolder(folder / "checkpoints").finished())
