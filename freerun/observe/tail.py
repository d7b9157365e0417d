"""A file of lines that another process may be writing to, read on from where the last reading ended.

Promises: every whole line is seen once; a line that is still being written is left for later; a file that was replaced
or cut (a resumed run does that) is said to be new, and read from its beginning. Does not know what the lines mean.
"""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class NewLines:
    lines: list[bytes]
    offsets: list[int]
    """Where in the file each line begins."""
    anew: bool
    """The file is not the one that was read before: forget what was read from that."""


class LinesTail:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0
        self._inode: int | None = None

    def read(self) -> NewLines:
        """The lines that were completed since the last call. A missing file has none."""
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                anew = status.st_ino != self._inode or status.st_size < self._read
                if anew:
                    self._read, self._inode = 0, status.st_ino
                file.seek(self._read)
                return self._lines(file.read(), anew)
        except (FileNotFoundError, NotADirectoryError):
            gone, self._inode, self._read = self._inode is not None, None, 0
            return NewLines([], [], anew=gone)

    def _lines(self, raw: bytes, anew: bool) -> NewLines:
        """Without the last line, unless its end is there."""
        whole = raw[: raw.rfind(b"\n") + 1]
        begin, self._read = self._read, self._read + len(whole)
        lines, offsets = [], []
        for line in whole.splitlines(keepends=True):
            if stripped := line.strip():
                lines.append(stripped)
                offsets.append(begin)
            begin += len(line)
        return NewLines(lines, offsets, anew)
