"""A file system of a certain size, in memory, that can be filled: root can mount one on Linux."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from freerun.core.errors import FreerunError

_FILLER = "filler"
_TRIES = 100


class SmallDisk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self, leave_bytes: int = 0) -> None:
        """Take all the room there is, but for that."""
        size = 0
        with (self.folder / _FILLER).open("wb") as filler:
            for _ in range(_TRIES):
                if (room := self._room_bytes - leave_bytes) <= 0:
                    return
                with suppress(OSError):  # somebody else was faster: there is less room by now
                    os.posix_fallocate(filler.fileno(), size, room)
                    size += room

    def empty(self) -> None:
        """Give it back."""
        (self.folder / _FILLER).unlink(missing_ok=True)

    @property
    def _room_bytes(self) -> int:
        room = os.statvfs(self.folder)
        return room.f_bavail * room.f_frsize

    def remount(self, how: str) -> None:
        """`ro`: it may only be read; `rw`: again as before."""
        _tool("mount", "-o", f"remount,{how}", str(self.folder))


@contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[SmallDisk]:
    """Mounted there for the block, with nothing in it. What it holds is lost then."""
    folder.mkdir(parents=True, exist_ok=True)
    _tool("mount", "-t", "tmpfs", "-o", f"size={mib}m", "freerun", str(folder))
    try:
        yield SmallDisk(folder)
    finally:
        _tool("umount", "--lazy", str(folder))


def unavailable() -> str | None:
    """Why none can be made here, in one line; None if one can."""
    if sys.platform != "linux":
        return "needs Linux to mount a small disk"
    if os.geteuid():
        return "needs root to mount a small disk"
    try:
        with TemporaryDirectory() as folder, small_disk(Path(folder), 1):
            return None
    except FreerunError as error:
        return f"cannot mount a small disk ({error.message})"


def _tool(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise FreerunError(f"{command[0]} is missing: install util-linux") from None
    except subprocess.CalledProcessError as error:
        raise FreerunError((error.stderr.strip().splitlines() or [f"{command[0]} failed"])[-1]) from None
