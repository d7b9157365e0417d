"""`freerun engines`, as a user types it, on the folder of a run that goes on and of one that does not."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from freerun.config.load import load_config
from freerun.config.text import dump
from freerun.core.files import write_atomically
from freerun.observe.folder import RunFolder, encode
from freerun.observe.status import Doing, RunStatus
from freerun.run.resume import load_run


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder.create(tmp_path, "run")
    (tmp_path / "run.yaml").write_text("model: {path: there}\ndata: {source: there.jsonl}\n")
    write_atomically(made.config, dump(*load_config(tmp_path / "run.yaml", ["train.lr=1e-5"])))
    return made


def goes_on(folder: RunFolder, *engines: str) -> None:
    """Has a status that says so."""
    now = time.time()
    doing = {name: Doing("version 3, 8 answers running, 0 queued", now) for name in engines}
    status = RunStatus(1, "here", now, now, True, 3, 3, doing, engines=dict.fromkeys([*engines, "engine 9"], "two"))
    write_atomically(folder.status, encode(status))


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "freerun.cli.main", "engines", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_engines_are_listed_and_changed(folder: RunFolder) -> None:
    goes_on(folder, "engine 0")
    assert run(folder.path).stdout.splitlines() == [
        "engine 0 on two: version 3, 8 answers running, 0 queued",
        "engine 9 on two: starts",
    ]
    before = folder.config.read_text()
    done = run(folder.path, "add", 2)
    assert done.stdout == (
        "resources.engines is 4 now, and was 2: the run takes that within seconds, and says so in its notes\n"
    )
    changed = [line for line in folder.config.read_text().splitlines() if line not in before.splitlines()]
    assert changed == ["  engines: 4  # freerun engines"], "and nothing else"
    assert run(folder.path, "remove", "engine 0").returncode == 0
    config, origins = load_run(folder)
    assert (config.resources.engines, origins["resources.engines"]) == (3, "freerun engines: without engine 0")
    assert origins["train.lr"] == "command line"


def test_mistakes_are_one_line(folder: RunFolder, tmp_path: Path) -> None:
    for arguments, says in (
        ([tmp_path], "is not a run's folder"),
        ([folder.path], "tells of no engines"),
        ([folder.path, "add"], "does not tell how many engines it has: set resources.engines in"),
    ):
        assert_says(run(*arguments), says)
    goes_on(folder, "engine 0")
    for arguments, says in (
        ([folder.path, "more"], "'more' is neither add nor remove"),
        ([folder.path, "add", "engine 0"], "add 'engine 0': it must be how many"),
        ([folder.path, "remove", "engine 5"], "remove 'engine 5': it must be how many, or one of engine 0, engine 9"),
        ([folder.path, "remove", 2], "the run has 2 engine(s), and at least one stays"),
    ):
        assert_says(run(*arguments), says)
    assert load_run(folder)[0].resources.engines is None


def assert_says(done: subprocess.CompletedProcess[str], says: str) -> None:
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
