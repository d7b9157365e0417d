"""A private folder in shared memory for the run's sockets and weights, gone with the run.

A run that was killed with -9 cannot tidy up; the next run on the machine does it, by the process id in the name.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "freerun-"


def memory_folder() -> Path:
    """Where files are memory: /dev/shm on Linux; elsewhere the ordinary temporary folder."""
    shared = Path("/dev/shm")
    return shared if shared.is_dir() and os.access(shared, os.W_OK) else Path(tempfile.gettempdir())


@contextmanager
def scratch_folder() -> Iterator[Path]:
    root = memory_folder()
    for left in root.glob(f"{_PREFIX}*"):
        if left.stat().st_uid == os.getuid() and not _alive(left.name):
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=root))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _alive(name: str) -> bool:
    try:
        os.kill(int(name.split("-")[1]), 0)
    except (ProcessLookupError, ValueError, IndexError):
        return False
    except PermissionError:
        pass
    return True
