"""How much processor time and memory a process's descendants use: counted by a control group, else read from /proc."""

import os
import time
from typing import NamedTuple

from freerun.machine.descendants import descendants
from freerun.sandbox.cgroups import ControlGroup

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SHARED = b"/dev/zero"
"""The name that /proc/PID/maps gives to memory that processes share without a file."""


class Usage(NamedTuple):
    cpu_s: float
    memory_bytes: int


class ProcessUsage(NamedTuple):
    """What /proc/PID/stat says about one process."""

    running: bool
    own_s: float
    waited_s: float
    """The time of ended children that it has waited for."""
    resident: int


class Meter:
    """What the descendants of `top` have used since `begin`. Without a group, read it often: that makes it accurate.

    Without a group, two things are estimated. The time of a process that nobody waits for disappears with it: the time
    it had when last seen is kept, plus half of the time since if it was running then; plus all of the time since if it
    was seen only once, because others like it may not have been seen at all. Shared memory that no process maps any
    more shows only in the machine's total: growth of that total is charged to these processes if one of them shares
    memory at all.
    """

    def __init__(self, top: int, group: ControlGroup | None) -> None:
        self._top = top
        self._group = group
        self._before = Usage(0.0, 0)
        self.begin()
        self._before = self.read()  # memory is read only once: what exists between two runs never changes

    def begin(self) -> None:
        self._seen: dict[int, ProcessUsage] = {}
        self._new: set[int] = set()
        self._ended_s = 0.0
        self._read_at = time.monotonic()
        self._shared = _machine_shared()
        self._before = self._before._replace(cpu_s=0.0)
        self._before = self._before._replace(cpu_s=self.cpu_s())

    def cpu_s(self) -> float:
        counted = self._group.cpu_s() if self._group else None
        return (self._read_processes().cpu_s if counted is None else counted) - self._before.cpu_s

    def read(self) -> Usage:
        cpu_s = self._group.cpu_s() if self._group else None
        memory = self._group.memory_bytes() if self._group else None
        if cpu_s is None or memory is None:
            estimate = self._read_processes()
            cpu_s = estimate.cpu_s if cpu_s is None else cpu_s
            memory = estimate.memory_bytes if memory is None else memory
        return Usage(cpu_s - self._before.cpu_s, memory - self._before.memory_bytes)

    def _read_processes(self) -> Usage:
        now, seen = time.monotonic(), processes_below(self._top)
        since_s, unseen_s = now - self._read_at, 0.0
        for pid, last in self._seen.items():
            if pid not in seen:
                self._ended_s += last.own_s
                unseen_s += since_s * (1.0 if pid in self._new else 0.5) if last.running else 0.0
        self._ended_s += min(unseen_s, since_s * (os.cpu_count() or 1))
        self._new = seen.keys() - self._seen.keys()
        self._seen, self._read_at = seen, now
        by_parents_s = sum(one.own_s + one.waited_s for one in seen.values())
        by_processes_s = sum(one.own_s for one in seen.values()) + self._ended_s
        memory = sum(one.resident for one in seen.values()) + self._unmapped_shared()
        return Usage(max(by_parents_s, by_processes_s), memory)

    def exact_memory(self) -> int:
        """Like `read`, but pages that several processes share count once. Slower."""
        if self._group and (counted := self._group.memory_bytes()) is not None:
            return counted - self._before.memory_bytes
        seen = processes_below(self._top)
        return sum(_proportional(pid, one.resident) for pid, one in seen.items()) + self._unmapped_shared()

    def _unmapped_shared(self) -> int:
        """An upper bound on these processes' shared memory that none of them maps."""
        growth = _machine_shared() - self._shared
        return growth if growth > 0 and any(map(_shares_memory, self._seen)) else 0


def processes_below(pid: int) -> dict[int, ProcessUsage]:
    found: dict[int, ProcessUsage] = {}
    for child in descendants(pid):
        try:
            with open(f"/proc/{child}/stat", "rb") as file:  # a process may rename itself to any bytes
                state, *fields = file.read().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        own, waited = sum(map(int, fields[10:12])), sum(map(int, fields[12:14]))
        own_s = max(own / _TICKS, _exact_s(child))
        found[child] = ProcessUsage(state == b"R", own_s, waited / _TICKS, int(fields[20]) * _PAGE)
    return found


def usage_below(pid: int) -> Usage:
    seen = processes_below(pid).values()
    return Usage(sum(one.own_s + one.waited_s for one in seen), sum(one.resident for one in seen))


def _exact_s(pid: int) -> float:
    """The exact time of its first thread, where the kernel reports it; /proc/PID/stat counts hundredths of a second."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[0]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _proportional(pid: int, resident: int) -> int:
    """Its resident memory, with each shared page divided by the number of processes that share it."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            return next((int(line.split()[1]) << 10 for line in file if line.startswith(b"Pss:")), resident)
    except OSError:
        return resident


def _machine_shared() -> int:
    with open("/proc/meminfo", "rb") as file:
        return next((int(line.split()[1]) << 10 for line in file if line.startswith(b"Shmem:")), 0)


def _shares_memory(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            return _SHARED in file.read()
    except OSError:
        return False
