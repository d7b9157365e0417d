"""The machine that this process runs on."""

import os


def processors() -> int:
    """Those that it may use, which in a container can be fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
