"""What a new user meets: runs that go on from any folder, names that are taken, starts that fail, results that are
kept, a model by its name on the hub."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from huggingface_hub import constants

from freerun.observe.folder import RunFolder
from freerun.observe.records import read_evals, read_steps
from tests.cli.test_bad_input import freerun as in_process
from tests.models.hub_server import COMMIT, cache
from tests.run.test_train import prepared
from tests.typed import freerun as typed

JUDGE = "def judge(task, text):\n    return float(text == task.answer)\n"


def freerun(*arguments: object, folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, "-m", "freerun.cli.main", *map(str, arguments)]
    return subprocess.run(words, cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=60)


def project(folder: Path) -> Path:
    """A folder with model, data, judge and a run's file that names them by relative paths."""
    config = json.loads(prepared(folder, "control.steps=1", "train.save_every=1").config.model_dump_json())
    config |= {"model": {"path": "model"}, "runs": "runs", "reward": {"judge": "mine.py:judge"}}
    config["data"]["source"], config["held_out"]["source"] = "train.jsonl", "held_out.jsonl"
    (folder / "mine.py").write_text(JUDGE)
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    return folder / "run.yaml"


def test_a_run_does_not_depend_on_where_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last command in a process of its own."""
    places = [tmp_path / name for name in ("project", "elsewhere", "third")]
    for place in places:
        place.mkdir()
    project(places[0])
    monkeypatch.chdir(places[0])
    done = typed("train", "run.yaml")
    assert done.returncode == 0, done.stderr
    run = places[0] / "runs" / "test"
    kept = yaml.safe_load((run / "config.yaml").read_text())
    assert kept["model"]["path"] == str(places[0] / "model")
    assert kept["data"]["source"] == str(places[0] / "train.jsonl")
    assert kept["reward"]["judge"] == f"{places[0]}/mine.py:judge"
    assert kept["runs"] == str(places[0] / "runs")
    monkeypatch.chdir(places[1])
    done = typed("resume", run, "control.steps=2")
    assert done.returncode == 0, done.stderr
    assert [step.step for step in read_steps(RunFolder(run).metrics)] == [1, 2]
    done = freerun("eval", places[0] / "run.yaml", f"model.path={run}/checkpoints/last", folder=places[2])
    assert done.returncode == 0, done.stderr
    assert "40 of the 40 held_out tasks are in data too" in done.stderr
    assert f"kept in runs{os.sep}test-eval" in done.stdout
    kept_in = places[2] / "runs" / "test-eval"
    (record,) = read_evals(RunFolder(kept_in).evals)
    assert f"| pass@1 | {record.pass_at_1:.3f} " in (kept_in / "eval.md").read_text()
    answers = [json.loads(line) for line in (kept_in / "answers.jsonl").read_text().splitlines()]
    assert len(answers) == 40
    assert sum(answer["reward"] for answer in answers) / 40 == record.pass_at_1
    assert not list(places[1].iterdir())


def test_a_model_of_the_hub_offline_and_a_name_that_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first and the last command in processes of their own."""
    file = project(tmp_path)
    snapshot = cache(tmp_path / "model", "acme/tiny", tmp_path / "home")
    named = ("train", file, "model.path=acme/tiny")
    hub = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    done = freerun(*named, folder=tmp_path, **hub)
    assert done.returncode == 0, done.stderr
    kept = yaml.safe_load((tmp_path / "runs" / "test" / "config.yaml").read_text())
    assert kept["model"]["path"] == f"acme/tiny@{COMMIT}"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home" / "hub"))
    done = typed("resume", tmp_path / "runs" / "test", "control.steps=2")
    assert done.returncode == 0, done.stderr
    (tmp_path / "broken.py").write_text("raise ValueError('no key')\ndef judge(task, text): return 1\n")
    done = typed(*named, "reward.judge=broken.py:judge")
    first, last = done.stderr.splitlines()
    assert first == (
        "runs/test exists (2 steps, done): this run is runs/test-2; to go on with the old one: freerun resume runs/test"
    )
    assert last.startswith("freerun: the judge broken.py:judge cannot be loaded: ")
    assert last.endswith("broken.py:1: ValueError: no key")
    assert [one.name for one in (tmp_path / "runs").iterdir()] == ["test"], "the start that failed left nothing"
    (snapshot / "model.safetensors").unlink()
    done = freerun(*named, folder=tmp_path, **hub)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "run `hf download acme/tiny`" in done.stderr


def test_supervised_training_has_a_report_and_a_dry_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = project(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    code, tried = in_process("sft", file, "--dry-run", "name=s", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 0, tried
    assert "360 answers to learn" in tried
    assert sorted(tmp_path.rglob("*")) == before
    code, said = in_process("sft", file, "name=s", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 0, said
    assert "look at runs/s/report.html" in said
    assert "<html" in (tmp_path / "runs" / "s" / "report.html").read_text()
