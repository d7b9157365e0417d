"""The processes below a process, read from /proc (Linux only: elsewhere there seem to be none)."""

import os
from collections.abc import Iterator


def children(pid: int) -> list[int]:
    """The children of all its threads; an empty list if it has ended."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    except (FileNotFoundError, ProcessLookupError):
        return found  # it has ended meanwhile
    return found


def descendants(pid: int) -> Iterator[int]:
    queue = children(pid)
    while queue:
        yield (child := queue.pop())
        queue += children(child)
