"""Disks that are full, or may only be read, at every moment of a run: one line that names the fix, and no traceback."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest

from freerun.bench.small_disk import SmallDisk, small_disk, unavailable
from freerun.observe.folder import RunFolder
from freerun.run import training
from tests.run.test_failed_resume import everything
from tests.run.test_train import prepared

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
FREERUN = (sys.executable, "-m", "freerun.cli.main")


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallDisk]:
    """Of 24 MiB, with a run of four steps in it."""
    if why := unavailable():
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("disk")
    with small_disk(folder / "runs", 24) as runs:
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
