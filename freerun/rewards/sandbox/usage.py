"""How much the processes below one have used, read from /proc: the kernel has no limit for a family of processes."""

import os
from collections.abc import Iterator
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Usage(NamedTuple):
    cpu_s: float
    memory_bytes: int
    """Resident. Pages that two processes share count twice."""


def children(pid: int) -> list[int]:
    """Of all its threads; none if it has ended."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    except (FileNotFoundError, ProcessLookupError):
        return found  # ended meanwhile
    return found


def descendants(pid: int) -> Iterator[int]:
    waiting = children(pid)
    while waiting:
        yield (child := waiting.pop())
        waiting += children(child)


def usage_below(pid: int) -> Usage:
    cpu_s, memory = 0.0, 0
    for child in descendants(pid):
        try:
            with open(f"/proc/{child}/stat") as file:
                fields = file.read().rpartition(")")[2].split()  # from the state on; the name may hold anything
        except (FileNotFoundError, ProcessLookupError):
            continue
        cpu_s += sum(map(int, fields[11:15])) / _TICKS  # its own, and that of children it has waited for
        memory += int(fields[21]) * _PAGE
    return Usage(cpu_s, memory)
