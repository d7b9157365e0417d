"""What other people's programs leave in shared memory when they are killed: files in /dev/shm that nobody removes.

The names differ by library and version, so what counts is who holds them: a file is the program's if one of its
processes has it mapped, and it was not there before the program started.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

SHM = Path("/dev/shm")


class SharedFiles:
    """Make it before the program starts; `note` while it runs; `remove` when all of it is gone."""

    def __init__(self, folder: Path = SHM) -> None:
        self._folder = folder
        self._before = {name for name, _ in self._files()}
        self._held: set[int] = set()

    def note(self, pids: Iterable[int]) -> None:
        """By the number of the file's inode: a semaphore is mapped under another name than the one that stays."""
        within = f"{self._folder}/"
        for pid in pids:
            with suppress(OSError):  # it has ended, or is not ours to look into
                for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                    _, _, _, _, inode, *path = line.split(maxsplit=5)
                    if path and path[0].startswith(within):
                        self._held.add(int(inode))

    def remove(self) -> None:
        for name, inode in self._files():
            if inode in self._held and name not in self._before:
                with suppress(OSError):
                    (self._folder / name).unlink()

    def _files(self) -> list[tuple[str, int]]:
        """Those that lie in the folder itself: what is below belongs to whoever made the folder within."""
        with suppress(OSError), os.scandir(self._folder) as entries:
            return [(entry.name, entry.inode()) for entry in entries if entry.is_file(follow_symlinks=False)]
        return []
