"""The machine that this process runs on."""

import os
import resource
from contextlib import suppress
from pathlib import Path

_FILES = 65_536


def processors() -> int:
    """How many this process may use, which in a container can be fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int:
    """How much memory there is: the machine's, or the container's limit where that is less."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # no such file, or no such limit
            machine = min(machine, int(Path(file).read_text()))
    return machine


def allow_many_files() -> None:
    """Raise the limit on open files as far as allowed, for this process and those that it starts: each answer being
    generated holds a connection, and the usual limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):  # macOS allows fewer than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
