"""Reads tasks by as many processes as the machine has processors for, and says how far it is where that takes long: to
render and tokenise a prompt takes a quarter of a millisecond, and data may have a million."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence

from freerun.core import Task
from freerun.data.tasks import InParts, Named
from freerun.machine.spread import spread

_SILENT_S = 3.0


def reading(what: str) -> InParts:
    """`what`: where the tasks come from."""

    def in_parts(make: Callable[[Sequence[Named]], list[Task]], rows: Sequence[Named]) -> Iterator[list[Task]]:
        done, told_s = 0, time.monotonic()
        for part in spread(make, rows):
            yield part
            done += len(part)
            if time.monotonic() - told_s >= _SILENT_S:
                told_s = time.monotonic()
                print(f"reads {what}: {done:,} of {len(rows):,} tasks", file=sys.stderr, flush=True)

    return in_parts
