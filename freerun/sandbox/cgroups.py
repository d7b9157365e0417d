"""A control group of the kernel's for a container, where this process may make one: exact counts of processor time and
memory, of processes that have ended too and of memory that no process has mapped any more.

Either version of control groups will do, and either count may be had without the other; what cannot be had is told as
None. A group lies in the group that this process is in, so whatever bounds this process bounds it too.
"""

import os
import subprocess
import time
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import Self

_REMOVE_TIMEOUT_S = 1.0
_NAMES = count()
_PREFIX = "freerun-container-"
_SECOND, _FIRST = (b"anon ", b"shmem ", b"kernel ", b"sock "), (b"total_rss ", b"total_shmem ")
"""What to count of `memory.stat`, in either version."""


class Group:
    def __init__(self, folders: list[Path]) -> None:
        self._folders = folders
        self._cpu = next((file for folder in folders for name in _CPU if (file := folder / name).exists()), None)
        self._memory = next((file for folder in folders if (file := folder / "memory.stat").exists()), None)

    @classmethod
    def make(cls) -> Self | None:
        """None where none can be had."""
        name = f"{_PREFIX}{os.getpid()}-{next(_NAMES)}"
        folders = [parent / name for parent in parents()]
        try:
            for folder in folders:
                folder.mkdir()
        except OSError:
            for folder in folders:
                with suppress(OSError):
                    folder.rmdir()
            return None
        return cls(folders) if folders else None

    def entered(self, command: list[str]) -> list[str]:
        """A command that begins in the group."""
        files = [str(folder / "cgroup.procs") for folder in self._folders]
        enter = 'while [ "$1" != -- ]; do echo 0 > "$1" || exit 1; shift; done; shift; exec "$@"'
        return ["/bin/sh", "-c", enter, "sh", *files, "--", *command]

    def cpu_s(self) -> float | None:
        if self._cpu is None:
            return None
        text = self._cpu.read_bytes()
        if self._cpu.name == "cpuacct.usage":
            return int(text) / 1e9
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(b"usage_usec")) / 1e6

    def memory_bytes(self) -> int | None:
        """What is its own: not files that it happened to read first."""
        if self._memory is None:
            return None
        text = self._memory.read_bytes()
        counted = _FIRST if b"total_rss " in text else _SECOND
        return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(counted))

    def remove(self) -> None:
        """Its processes have ended; the kernel may take a moment to notice."""
        give_up_s = time.monotonic() + _REMOVE_TIMEOUT_S
        for folder in self._folders:
            while True:
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    if time.monotonic() > give_up_s:
                        break
                    time.sleep(0.001)
                else:
                    break


_CPU = ("cpu.stat", "cpuacct.usage")


@cache
def parents() -> list[Path]:
    """The groups that this process is in and may divide: of the second version, and of what the first counts."""
    found = [folder for folder in _own_groups() if os.access(folder, os.W_OK) and _may_enter(folder)]
    for folder in found:
        _sweep(folder)
    return found


def _own_groups() -> list[Path]:
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return []
    groups = []
    for _, place, kind, options, *_ in mounts:
        wanted = {"cgroup2": {""}, "cgroup": {"memory", "cpuacct"} & {*options.split(",")}}.get(kind, set[str]())
        for _, controllers, path in lines:
            if not wanted.isdisjoint(controllers.split(",")) and Path(f"{place}{path}").is_dir():
                groups.append(Path(f"{place}{path}"))
    return groups


def _may_enter(folder: Path) -> bool:
    """Tried with a process: a group may be made where none can be put in."""
    probe = folder / f"{_PREFIX}{os.getpid()}-probe"
    try:
        probe.mkdir()
    except OSError:
        return False
    try:
        enter = ["/bin/sh", "-c", 'echo 0 > "$0/cgroup.procs"', str(probe)]
        return subprocess.run(enter, stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False
    finally:
        Group([probe]).remove()


def _sweep(folder: Path) -> None:
    """Groups of judges that were killed."""
    for left in folder.glob(f"{_PREFIX}*"):
        pid = left.name.removeprefix(_PREFIX).partition("-")[0]
        if not os.path.exists(f"/proc/{pid}"):
            with suppress(OSError):
                left.rmdir()
