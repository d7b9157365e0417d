"""A private folder in shared memory for the run's sockets and weights, gone with the run.

A run that was killed with -9 cannot remove its folder; the next run on the machine does. A folder is in use while the
process in its name lives, or some process holds its lock: containers may share the memory, and number processes each in
its own way.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "freerun-"


def memory_folder() -> Path:
    """Where files are memory: /dev/shm on Linux; elsewhere the ordinary temporary folder."""
    shared = Path("/dev/shm")
    return shared if shared.is_dir() and os.access(shared, os.W_OK) else Path(tempfile.gettempdir())


@contextmanager
def scratch_folder() -> Iterator[Path]:
    root = memory_folder()
    for left in root.glob(f"{_PREFIX}[0-9]*-*"):
        _remove_unless_used(left)
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=root))
    with _locked(folder):
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_unless_used(left: Path) -> None:
    """It may be in use, another user's, or already gone."""
    with suppress(OSError):
        if left.stat().st_uid == os.getuid() and not _alive(left.name):
            with _locked(left):
                shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Raises OSError if another process holds the lock, which ends with its process, however that ends."""
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(held)


def _alive(name: str) -> bool:
    process = name.split("-")[1]
    if not process.isdigit():
        return True  # not a folder of ours
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
