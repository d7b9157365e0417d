"""`freerun samples`, as a user types it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from freerun.core import FinishReason
from freerun.observe.folder import RunFolder
from tests.observe.runs import a_sample, keep_samples


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder.create(tmp_path, "run")
    records = [a_sample(step, text=f"Answer {step}", reward=step / 100) for step in range(1, 121)]
    cut = a_sample(121, text="cut off", finish=FinishReason.LENGTH.value, fate="no_signal", task="other", reward=0.0)
    keep_samples(made.samples, *records, cut)
    return made


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "freerun.cli.main", "samples", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_those_that_pass_are_lines_of_json_newest_first(folder: RunFolder, tmp_path: Path) -> None:
    done = run(folder.path, "--text", "answer", "--reward-min", 0.1, "--step-max", 115, "--limit", 60)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["step"] for line in lines] == list(range(115, 55, -1))
    assert (lines[0]["text"], lines[0]["tokens"], lines[0]["logprobs"]) == (
        "Answer 115",
        [" ", "4"],
        pytest.approx([-0.1, -0.2]),
    )
    out = tmp_path / "cut.jsonl"
    done = run(folder.path, "--truncated", "--fate", "no_signal", "--task", "other", "--out", out)
    assert (done.stdout, json.loads(out.read_text())["text"]) == (f"done: 1 samples are in {out}\n", "cut off")


def test_mistakes_are_one_line(folder: RunFolder, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments, says in (
        ([tmp_path / "none"], "is not a run's folder"),
        ([empty], "run.db is missing"),
        ([folder.path, "--out", tmp_path / "none" / "x"], "cannot be written"),
    ):
        done = run(*arguments)
        assert done.returncode != 0
        assert says in done.stderr
        assert len(done.stderr.splitlines()) == 1
