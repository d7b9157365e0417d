"""What a killed program leaves in shared memory is removed, and nothing else."""

import subprocess
import sys
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from freerun.machine.shared_files import SHM, SharedFiles

_HOLDS = """
import multiprocessing, sys, tempfile, time
from multiprocessing import resource_tracker, shared_memory
resource_tracker.register = lambda *_: None
mine = shared_memory.SharedMemory(create=True, size=64)
lock = multiprocessing.get_context("spawn").Lock()
others = shared_memory.SharedMemory(sys.argv[1])
_, temporary = tempfile.mkstemp()
print(mine.name, lock._semlock.name.strip("/"), temporary, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(not SHM.is_dir(), reason="there is no /dev/shm here")
def test_only_what_a_killed_program_had_made_is_removed() -> None:
    before = SharedMemory(create=True, size=64)
    files = SharedFiles()
    unheld = SharedMemory(create=True, size=64)
    try:
        with subprocess.Popen(
            [sys.executable, "-c", _HOLDS, before.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as program:
            assert program.stdout is not None
            segment, semaphore, temporary = program.stdout.readline().split()
            left = [SHM / segment, SHM / f"sem.{semaphore}"]
            files.note([program.pid])
            program.kill()
            Path(temporary).unlink()
        assert all(path.exists() for path in left), "a killed program cannot clean up"
        files.remove()
        assert not any(path.exists() for path in left)
        assert (SHM / before.name).exists(), "it was there before the program"
        assert (SHM / unheld.name).exists(), "the program does not have it"
    finally:
        before.unlink()
        unheld.unlink()


@pytest.mark.skipif(not SHM.is_dir(), reason="there is no /dev/shm here")
def test_a_keeper_leaves_no_files_behind() -> None:
    """Its program is killed with the lifeline, and has no chance to clean up."""
    before = SharedMemory(create=True, size=64)
    command = [sys.executable, "-m", "freerun.machine.keeper", sys.executable, "-c", _HOLDS, before.name]
    try:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as keeper:
            assert keeper.stdout is not None
            segment, semaphore, temporary = keeper.stdout.readline().split()
            left = [SHM / segment, SHM / f"sem.{semaphore}", Path(temporary)]
            assert all(path.exists() for path in left)
            _, _ = keeper.communicate()
        assert not any(path.exists() for path in left)
    finally:
        before.unlink()


def test_a_machine_without_shared_memory_has_nothing_to_remove(tmp_path: Path) -> None:
    files = SharedFiles(tmp_path / "missing")
    files.note([2**30])
    files.remove()
