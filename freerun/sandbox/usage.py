"""How much the processes below one have used: by their control group where there is one, else by looking at them."""

import os
import time
from collections.abc import Iterator
from typing import NamedTuple

from freerun.sandbox.cgroups import Group

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SHARED = b"/dev/zero"
"""What maps call memory that processes share without a file."""


class Usage(NamedTuple):
    cpu_s: float
    memory_bytes: int


class Seen(NamedTuple):
    """What /proc/PID/stat says of one process."""

    running: bool
    own_s: float
    waited_s: float
    """The time of children that it has waited for."""
    resident: int


class Meter:
    """What the processes below `top` have used since `begin`. Its readings only get better: `read` it often.

    Without a group, two things have to be guessed. The time of a process that nobody waits for is gone with it: what it
    had when last seen is kept, and if it was running then, half of the time since; all of it, if it was seen only
    once, since then others like it were not seen at all. Memory that was shared and is in no process's pages any more
    shows only in the machine's total: that is taken for theirs if one of them shares memory at all.
    """

    def __init__(self, top: int, group: Group | None) -> None:
        self._top = top
        self._group = group
        self._before = Usage(0.0, 0)
        self.begin()
        self._before = self.read()  # of memory once: what is there between two runs is always the same

    def begin(self) -> None:
        self._seen: dict[int, Seen] = {}
        self._young: set[int] = set()
        self._gone_s = 0.0
        self._when = time.monotonic()
        self._shared = _machine_shared()
        self._before = self._before._replace(cpu_s=0.0)
        self._before = self._before._replace(cpu_s=self.cpu_s())

    def cpu_s(self) -> float:
        counted = self._group.cpu_s() if self._group else None
        return (self._look().cpu_s if counted is None else counted) - self._before.cpu_s

    def read(self) -> Usage:
        cpu_s = self._group.cpu_s() if self._group else None
        memory = self._group.memory_bytes() if self._group else None
        if cpu_s is None or memory is None:
            looked = self._look()
            cpu_s = looked.cpu_s if cpu_s is None else cpu_s
            memory = looked.memory_bytes if memory is None else memory
        return Usage(cpu_s - self._before.cpu_s, memory - self._before.memory_bytes)

    def _look(self) -> Usage:
        now, seen = time.monotonic(), processes_below(self._top)
        since_s, unseen_s = now - self._when, 0.0
        for pid, last in self._seen.items():
            if pid not in seen:
                self._gone_s += last.own_s
                unseen_s += since_s * (1.0 if pid in self._young else 0.5) if last.running else 0.0
        self._gone_s += min(unseen_s, since_s * (os.cpu_count() or 1))
        self._young = seen.keys() - self._seen.keys()
        self._seen, self._when = seen, now
        waited_s = sum(one.own_s + one.waited_s for one in seen.values())
        kept_s = sum(one.own_s for one in seen.values()) + self._gone_s
        return Usage(max(waited_s, kept_s), sum(one.resident for one in seen.values()) + self._hidden())

    def exact_memory(self) -> int:
        """Slower: pages that several of them share count once."""
        if self._group and (counted := self._group.memory_bytes()) is not None:
            return counted - self._before.memory_bytes
        seen = processes_below(self._top)
        return sum(_proportional(pid, one.resident) for pid, one in seen.items()) + self._hidden()

    def _hidden(self) -> int:
        """Shared memory of theirs, at most."""
        grown = _machine_shared() - self._shared
        return grown if grown > 0 and any(map(_shares_memory, self._seen)) else 0


def children(pid: int) -> list[int]:
    """Of all its threads; none if it has ended."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    except (FileNotFoundError, ProcessLookupError):
        return found  # ended meanwhile
    return found


def descendants(pid: int) -> Iterator[int]:
    waiting = children(pid)
    while waiting:
        yield (child := waiting.pop())
        waiting += children(child)


def processes_below(pid: int) -> dict[int, Seen]:
    found: dict[int, Seen] = {}
    for child in descendants(pid):
        try:
            with open(f"/proc/{child}/stat", "rb") as file:  # a process may call itself anything, in bytes of any kind
                state, *fields = file.read().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        own, waited = sum(map(int, fields[10:12])), sum(map(int, fields[12:14]))
        own_s = max(own / _TICKS, _exact_s(child))
        found[child] = Seen(state == b"R", own_s, waited / _TICKS, int(fields[20]) * _PAGE)
    return found


def _exact_s(pid: int) -> float:
    """The time of its first thread, exact where the kernel says so; /proc/PID/stat counts hundredths of a second."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[0]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _proportional(pid: int, resident: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            return next((int(line.split()[1]) << 10 for line in file if line.startswith(b"Pss:")), resident)
    except OSError:
        return resident


def usage_below(pid: int) -> Usage:
    seen = processes_below(pid).values()
    return Usage(sum(one.own_s + one.waited_s for one in seen), sum(one.resident for one in seen))


def _machine_shared() -> int:
    with open("/proc/meminfo", "rb") as file:
        return next((int(line.split()[1]) << 10 for line in file if line.startswith(b"Shmem:")), 0)


def _shares_memory(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            return _SHARED in file.read()
    except OSError:
        return False
