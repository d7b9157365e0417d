"""What the kernel says of a process, by its id: on Linux; elsewhere nothing."""

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Used:
    """Since the process began."""

    cpu_s: float
    """What all its threads have used, and the children that it has waited for."""
    ready_s: float
    """It could have computed, and others had the processors. Its first thread's."""
    own_bytes: int
    """Memory that it shares with nobody, now."""


def used(pid: int) -> Used | None:
    """None where the process is gone, or the system does not tell."""
    try:
        times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]
        _, ready_ns, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except (OSError, ValueError):
        return None
    return Used(sum(map(int, times)) / _TICKS, int(ready_ns) / 1e9, (int(resident) - int(shared)) * _PAGE)
