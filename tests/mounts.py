"""Small file systems, such as root can make on Linux: full, or only to be read."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "none", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def remount(folder: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], check=True)


def fill(disk: Path, leave_bytes: int = 0) -> Path:
    """A file that takes all the room there is, but for that."""
    free = os.statvfs(disk)
    filler = disk / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(free.f_bavail * free.f_frsize - leave_bytes, 1))
    return filler


def unavailable(folder: Path) -> str | None:
    """Why they cannot be made here; None where they can."""
    if sys.platform != "linux" or os.geteuid():
        return "small file systems, which root can mount on Linux"
    try:
        with small_disk(folder, 1):
            return None
    except (OSError, subprocess.CalledProcessError):
        return "small file systems: mounting is not allowed here"
