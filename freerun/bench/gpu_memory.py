"""How much of a GPU's memory a run really takes, against what its plan says."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from freerun.machine.gpus import memory_of_processes, visible_gpus

_EVERY_S = 0.1


@dataclass
class GpuMemory:
    """The memory of the first GPU that is visible, in GiB."""

    predicted: float
    before: float
    most: float = 0.0
    processes: list[float] = field(default_factory=list)
    """The most that each process on it has had, where the driver tells."""

    @property
    def taken(self) -> float:
        return self.most - self.before

    def look(self) -> None:
        (gpu, *_) = visible_gpus()
        self.most = max(self.most, (gpu.total - gpu.free) / 2**30)
        by_size = sorted((size / 2**30 for size in memory_of_processes(gpu.uuid).values()), reverse=True)
        if len(by_size) >= len(self.processes):
            self.processes = [max(pair) for pair in zip(by_size, [*self.processes, 0.0, 0.0, 0.0], strict=False)]

    def __str__(self) -> str:
        each = f" ({', '.join(f'{size:.1f}' for size in self.processes)} by process)" if self.processes else ""
        off = self.taken / self.predicted - 1 if self.predicted else 0.0
        return f"GPU memory: {self.taken:.1f} GiB{each}, {self.predicted:.1f} planned: {off:+.0%}"


@contextmanager
def measured(predicted: int) -> Iterator[GpuMemory | None]:
    """Looks all the time in the block, which begins before there are any processes; `predicted` in bytes. None without
    a GPU."""
    gpus = visible_gpus()
    if not gpus:
        yield None
        return
    memory = GpuMemory(predicted / 2**30, (gpus[0].total - gpus[0].free) / 2**30)
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_EVERY_S):
            memory.look()

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield memory
    finally:
        ended.set()
        watching.join()
