"""How many workers a pool should have, by what they are seen to do: more while answers queue and judging mostly waits.

A judge that waits, for another machine or a clock, needs hardly any processor: more workers judge more, up to the most
that there may be. One that computes needs a processor for each worker, and has as many as the run's other processes
leave. Time in which a worker could have computed and others had the processor counts as neither.

`Growth` decides; `Spent` measures. Neither starts anything.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from freerun.machine.proc import Used, used

LOOK_S = 0.5
_BUSY = 0.8
"""Workers that are idle for more than the rest of the time are enough."""


class BusyTime:
    """Worker-seconds, those under way included."""

    def __init__(self, most: Callable[[], int] | None = None) -> None:
        """No more than `most` are at work at once, however much is running."""
        self.running = 0
        self._most = most
        self._spent_s, self._since_s = 0.0, time.monotonic()

    def change(self, by: int) -> None:
        self._spent_s, self._since_s = self.seconds, time.monotonic()
        self.running += by

    @property
    def seconds(self) -> float:
        working = min(self.running, self._most()) if self._most else self.running
        return self._spent_s + working * (time.monotonic() - self._since_s)


@dataclass(frozen=True, slots=True)
class Spent:
    """What the workers did between two looks."""

    seconds: float
    busy_s: float
    """Worker-seconds in which they judged."""
    cpu_s: float
    ready_s: float
    largest_bytes: int
    """Memory of the largest worker's own."""

    @property
    def cpu_share(self) -> float:
        """Share of a judgement in which it computes, as it would be with a processor of its own. NaN: unknown."""
        alone_s = max(self.busy_s - self.ready_s, self.cpu_s)
        return self.cpu_s / alone_s if alone_s > 0 else math.nan


class Look:
    """The workers' figures at the last look, by process id."""

    def __init__(self) -> None:
        self._then: Mapping[int, Used] = {}
        self._at_s, self._busy_s = time.monotonic(), 0.0

    def spent(self, pids: list[int], busy_s: float) -> Spent | None:
        """Since the last look, by workers that were there then. None where the system does not tell."""
        now_s = time.monotonic()
        now = {pid: one for pid in pids if (one := used(pid))}
        both = [(self._then[pid], one) for pid, one in now.items() if pid in self._then]
        seconds, busy = now_s - self._at_s, busy_s - self._busy_s
        self._then, self._at_s, self._busy_s = now, now_s, busy_s
        if not both:
            return None
        of_all = len(both) / max(len(pids), 1)
        cpu_s = sum(after.cpu_s - before.cpu_s for before, after in both)
        ready_s = sum(after.ready_s - before.ready_s for before, after in both)
        return Spent(seconds, busy * of_all, cpu_s, ready_s, max(one.own_bytes for one in now.values()))


@dataclass(frozen=True, slots=True)
class Growth:
    processors: int
    """What judging may use of them: the number of workers to begin with."""
    most: int
    memory_bytes: int
    """For all workers together."""

    def workers(self, now: int, queued: int, spent: Spent) -> int:
        """How many there should be."""
        if not queued or spent.busy_s < _BUSY * now * spent.seconds or math.isnan(spent.cpu_share):
            return now
        room = self.processors / max(spent.cpu_share, 1e-3)
        fit = self.memory_bytes // max(spent.largest_bytes, 1)
        return max(min(2 * now, int(room), fit, self.most), now)
