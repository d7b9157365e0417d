"""Runs that are killed, and what their book makes of it: with every real process, and a real kill -9."""

import asyncio
import os
import select
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from freerun.commands.audit import audit_run
from freerun.observe.book_reader import BookReader
from freerun.observe.folder import RunFolder
from freerun.observe.records import read_notes
from freerun.run import training
from tests.cli.test_stopping import descendants
from tests.run.test_resume import FREERUN, steps_of
from tests.run.test_train import prepared
from tests.typed import freerun as typed

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

STALE = ("control.groups_per_step=4", "control.max_staleness=3", "rollout.max_new_tokens=8", "control.steps=20")


def killed(config: Path, folder: RunFolder, when: Callable[[], bool]) -> None:
    """Run it as a user would, and kill -9 all of it then."""
    going = subprocess.Popen([*FREERUN, "train", str(config)], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    try:
        while not (folder.samples.is_file() and when()):
            assert going.poll() is None
            assert time.monotonic() < deadline
            select.select([], [], [], 0.01)
    finally:
        for pid in [going.pid, *descendants(going.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        going.wait()


def freerun(*arguments: str) -> str:
    done = typed(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("save_every", [0, 5])
def test_a_killed_run_does_its_steps_again_and_trains_on_what_waited(tmp_path: Path, save_every: int) -> None:
    """Without a checkpoint it goes on from its beginning: nothing of it is sampled again."""
    run = prepared(tmp_path, *STALE, f"train.save_every={save_every}")
    (tmp_path / "run.yaml").write_text(run.config.model_dump_json())
    folder = RunFolder(tmp_path / "runs" / "test")
    book = BookReader(folder.samples)
    killed(tmp_path / "run.yaml", folder, lambda: max(steps_of(folder), default=0) >= 7 and bool(book.ready(since=99)))
    done = max(book.settlements(book.oldest_settled()))
    waited = {group.id: group for _, group in book.ready(since=done)}
    assert waited

    freerun("resume", str(folder.path))
    said = " ".join(record.text for record in read_notes(folder.notes))
    assert "done again from kept answers" in said
    assert f"{len(waited)} group" in said or f"{len(waited) - 1} group" in said, "perhaps one of the next version"
    assert steps_of(folder) == list(range(1, 21))
    audited = freerun("audit", str(folder.path))
    assert "audit: 80 trained, 0 dropped" in audited
    assert "0 lost, 0 twice, 0 tokens past the bound of 3" in audited
    with sqlite3.connect(folder.samples) as db:
        trained = {group for (group,) in db.execute("SELECT DISTINCT grp FROM samples WHERE step > ?", (done,))}
    kept = [group.id for group in waited.values() if group.newest_version <= done]
    assert set(kept) <= trained, "what waited was trained on under its own id, and not asked again"


def test_an_audit_names_what_is_lost_and_what_was_trained_twice(tmp_path: Path) -> None:
    run = prepared(tmp_path, "control.steps=4")
    folder = asyncio.run(training.train(run)).folder
    assert audit_run(folder.path).is_clean
    with sqlite3.connect(folder.samples) as db:
        db.execute("DELETE FROM book_events WHERE epoch = 0 AND place = 3")
        db.execute(
            "INSERT INTO book_events(stage, grp, epoch, place, task, version) VALUES ('trained', 999, 0, 1, 't', 2)"
        )
    audited = typed("audit", folder.path)
    assert audited.returncode == 1
    assert "lost: task 3 of epoch 0" in audited.stdout
    assert "trained 2 times: task 1 of epoch 0" in audited.stdout
    assert "1 lost, 1 twice" in audited.stdout


def test_a_run_without_a_book_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(prepared(tmp_path).config.model_dump_json())
    said = typed("audit", tmp_path)
    assert said.returncode == 2
    assert said.stderr.count("\n") == 1
    assert "has no book of groups in run.db" in said.stderr
