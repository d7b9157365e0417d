"""A kernel control group for a container, where this process may create one.

It counts processor time and memory exactly, including processes that have ended and shared memory that no process maps
any more. Both versions of control groups work, and either count may be available without the other; a count that is
not available is None. The group is created inside the group of this process, so limits on this process apply to it too.
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
_NUMBERS = count()
_PREFIX = "freerun-container-"
_CPU_FILES = ("cpu.stat", "cpuacct.usage")
_V2_MEMORY, _V1_MEMORY = (b"anon ", b"shmem ", b"kernel ", b"sock "), (b"total_rss ", b"total_shmem ")
"""The lines of `memory.stat` that are summed, in version 2 and in version 1."""


class ControlGroup:
    def __init__(self, folders: list[Path]) -> None:
        self._folders = folders
        self._cpu = next((file for folder in folders for name in _CPU_FILES if (file := folder / name).exists()), None)
        self._memory = next((file for folder in folders if (file := folder / "memory.stat").exists()), None)

    @classmethod
    def make(cls) -> Self | None:
        """Create a group, or return None where this process may not."""
        name = f"{_PREFIX}{os.getpid()}-{next(_NUMBERS)}"
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

    def wrap(self, command: list[str]) -> list[str]:
        """A command that enters the group and then executes `command`."""
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
        """Memory of the group's own processes; the page cache of files they happened to read first is left out."""
        if self._memory is None:
            return None
        text = self._memory.read_bytes()
        counted = _V1_MEMORY if b"total_rss " in text else _V2_MEMORY
        return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(counted))

    def remove(self) -> None:
        """Remove the group after its processes have ended, which the kernel may take a moment to notice."""
        deadline = time.monotonic() + _REMOVE_TIMEOUT_S
        for folder in self._folders:
            while True:
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        break
                    time.sleep(0.001)
                else:
                    break


@cache
def parents() -> list[Path]:
    """The groups that this process is in and may create groups in: version 2, and version 1's counting controllers."""
    found = [folder for folder in _own_groups() if os.access(folder, os.W_OK) and _can_be_entered(folder)]
    for folder in found:
        _remove_abandoned(folder)
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


def _can_be_entered(folder: Path) -> bool:
    """Try it with a process: some groups can be created but not entered."""
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
        ControlGroup([probe]).remove()


def _remove_abandoned(folder: Path) -> None:
    """Remove the groups of processes that were killed before they could do so."""
    for group in folder.glob(f"{_PREFIX}*"):
        pid = group.name.removeprefix(_PREFIX).partition("-")[0]
        if not os.path.exists(f"/proc/{pid}"):
            with suppress(OSError):
                group.rmdir()
