"""Where agents print to: a file that does not grow without end."""

import time
from pathlib import Path
from typing import BinaryIO

MOST_BYTES = 32 << 20
"""How large the file may get. A full one is kept as FILE.1, in place of the one before."""
BYTES_PER_S = 1 << 20
"""Written by all agents together; more is left out."""


class AgentLog:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = self._open()
        self._size = self._file.tell()
        self._second, self._in_second, self._left_out = 0, 0, 0

    def _open(self) -> BinaryIO:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        return self._path.open("ab", buffering=0)

    def write(self, printed: bytes) -> None:
        now = int(time.monotonic())
        if now != self._second:
            said = f"\n({self._left_out} bytes were left out)\n".encode() if self._left_out else b""
            self._second, self._in_second, self._left_out = now, 0, 0
            printed = said + printed
        kept = printed[: max(0, BYTES_PER_S - self._in_second)]
        self._left_out += len(printed) - len(kept)
        self._in_second += len(kept)
        if kept:
            self._append(kept)

    def _append(self, printed: bytes) -> None:
        if self._size + len(printed) > MOST_BYTES:
            self._file.close()
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
            self._file, self._size = self._open(), 0
        self._file.write(printed)
        self._size += len(printed)

    def close(self) -> None:
        self._file.close()
