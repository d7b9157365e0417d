"""Disks that are full, or may only be read, at every moment of a run: one line that names the fix, and no traceback."""

import asyncio
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from freerun.bench.small_disk import SmallDisk, small_disk, unavailable
from freerun.core import FreerunError, TrainerError
from freerun.core.observer import Observer
from freerun.core.records import StepRecord
from freerun.models.tiny import make_model
from freerun.observe.folder import RunFolder
from freerun.observe.records import read_notes, read_steps
from freerun.run import training
from freerun.run.resume import resume
from freerun.train.checkpoint_folder import CheckpointFolder
from tests.run.test_failed_resume import everything
from tests.run.test_train import prepared

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
ALMOST_A_CHECKPOINT = 1_200_000
FREERUN = (sys.executable, "-m", "freerun.cli.main")


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallDisk]:
    """Of 40 MiB, with a run of four steps in it. A checkpoint takes 1.4 MB, and run.db some 0.15 MB a step."""
    if why := unavailable():
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("disk")
    prepared(folder)
    shutil.rmtree(folder / "model")
    make_model(folder / "model", "abcdef>", seed=1, hidden=64)
    with small_disk(folder / "runs", 40) as runs:
        run = prepared(folder, "control.steps=4", "train.save_every=2")
        (folder / "run.yaml").write_text(run.config.model_dump_json())
        asyncio.run(training.train(run))
        yield runs


def freerun(*arguments: str) -> tuple[int, list[str]]:
    ended = subprocess.run([*FREERUN, *arguments], capture_output=True, text=True, check=False)
    return ended.returncode, ended.stderr.splitlines()


def test_a_disk_that_may_only_be_read_is_said_before_anything_starts(disk: SmallDisk) -> None:
    run = RunFolder(disk.folder / "test")
    before = everything(run)
    disk.remount("ro")
    try:
        code, said = freerun("resume", str(run.path), "control.steps=6")
        assert (code, said[-1]) == (
            1,
            f"freerun: {run.path} cannot be written (Read-only file system): make it writable, and try again",
        )
        code, said = freerun("train", str(disk.folder.parent / "run.yaml"))
        assert code == 2
        assert said[-1].endswith("cannot be made (Read-only file system): set runs to a folder of yours")
    finally:
        disk.remount("rw")
    assert everything(run) == before


def test_a_full_disk_is_said_before_anything_starts(disk: SmallDisk) -> None:
    run = RunFolder(disk.folder / "test")
    before = everything(run)
    disk.fill()
    try:
        code, said = freerun("resume", str(run.path), "control.steps=6")
        assert (code, said[-1]) == (
            1,
            f"freerun: {run.path} cannot be written (No space left on device): make room for it, and try again",
        )
        code, said = freerun("train", str(disk.folder.parent / "run.yaml"))
        assert code == 1
        assert said[-1].endswith(
            "config.yaml cannot be written (No space left on device): make room for it, and try again"
        )
        assert not (disk.folder / "test-2").exists(), "a run that could not begin leaves nothing"
    finally:
        disk.empty()
    assert everything(run) == before


@dataclass
class FillsTheDisk(Observer):
    """At the ends of those steps: how much room to leave, None for all there was. A checkpoint that is being written is
    waited for."""

    disk: SmallDisk
    leaves: dict[int, int | None]

    def step(self, record: StepRecord) -> None:
        if record.step in self.leaves:
            self.disk.empty()
            if (left := self.leaves[record.step]) is not None:
                deadline = time.monotonic() + 60
                while list(self.disk.folder.glob("*/checkpoints/*.unfinished")):
                    assert time.monotonic() < deadline
                    select.select([], [], [], 0.01)
                self.disk.fill(left)


async def test_a_run_goes_on_without_the_checkpoints_that_its_disk_has_no_room_for(disk: SmallDisk) -> None:
    run = prepared(disk.folder.parent, "control.steps=9", "train.save_every=2", "name=tight", "keep_samples_gib=0")
    fills = FillsTheDisk(disk, {3: ALMOST_A_CHECKPOINT, 7: None})
    folder = (await training.train(run, guests=[fills])).folder
    assert [record.step for record in read_steps(folder.metrics)] == list(range(1, 10))
    assert sorted(CheckpointFolder(folder.checkpoints).finished()) == [8, 9]
    missing = [note.text for note in read_notes(folder.notes) if "is not saved" in note.text]
    assert [text.partition(" is not")[0] for text in missing] == ["step 4", "step 6"]
    for text in missing:
        assert "a checkpoint could not be written: " in text
        assert (
            "see whether its disk is full; the run goes on, tries again after 2 more steps, and could be resumed"
            in text
        )
    assert missing[1].endswith("from step 2; 2 are missing in a row")
    assert not list(folder.checkpoints.glob("*.unfinished"))


async def test_a_last_checkpoint_that_finds_no_room_fails_the_run(disk: SmallDisk) -> None:
    run = prepared(disk.folder.parent, "control.steps=4", "train.save_every=2", "name=late", "keep_samples_gib=0")
    try:
        with pytest.raises(
            TrainerError, match=r"^a checkpoint could not be written: .*; see whether its disk is full$"
        ):
            await training.train(run, guests=[FillsTheDisk(disk, {3: ALMOST_A_CHECKPOINT})])
    finally:
        disk.empty()
    outcome = await training.train(*resume(disk.folder / "late", []))
    assert [record.step for record in outcome.steps] == [1, 2, 3, 4]


async def test_a_disk_without_any_room_ends_the_run_in_a_line_and_it_goes_on_when_there_is(disk: SmallDisk) -> None:
    run = prepared(disk.folder.parent, "control.steps=8", "train.save_every=2", "name=full")
    try:
        with pytest.raises(
            FreerunError, match=r"cannot be written \(No space left on device\): make room for it"
        ) as said:
            await training.train(run, guests=[FillsTheDisk(disk, {3: 0})])
    finally:
        disk.empty()
    assert "\n" not in str(said.value)
    outcome = await training.train(*resume(disk.folder / "full", []))
    assert [record.step for record in outcome.steps] == list(range(1, 9))
    assert (disk.folder / "full" / "report.html").is_file()
