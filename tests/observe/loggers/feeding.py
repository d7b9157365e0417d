"""Loggers that are fed by hand, and what they have the run note."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from freerun.core import Batch, FinishReason, Group, Sample, Task
from freerun.core.nouns import NOT_SAMPLED
from freerun.observe.folder import RunFolder
from freerun.observe.loggers.apart import Loggers
from freerun.run.guests import load_guests

CONFIG: dict[str, Any] = {
    "name": "fed",
    "seed": 0,
    "model": {"path": "models/tiny"},
    "data": {"source": "train.jsonl", "limit": None},
    "control": {"max_staleness": 2, "steps": 3},
    "train": {"lr": 5e-3},
    "observers": ["secret"],
}
PATIENCE_S = 60.0


class Notes:
    def __init__(self) -> None:
        self.all: list[str] = []
        self._come = asyncio.Event()

    def __call__(self, text: str) -> None:
        self.all.append(text)
        self._come.set()

    async def one(self, about: str) -> str:
        """Wait for it."""
        async with asyncio.timeout(PATIENCE_S):
            while not (found := [note for note in self.all if about in note]):
                self._come.clear()
                await self._come.wait()
        return found[0]


def run_folder(path: Path) -> RunFolder:
    folder = RunFolder(path / "runs" / "fed")
    folder.logs.mkdir(parents=True, exist_ok=True)
    folder.config.write_text("name: fed\n")
    return folder


@asynccontextmanager
async def fed(path: Path, *settings: Any, step: int = 0) -> AsyncIterator[tuple[Loggers, Notes]]:
    """A run's loggers, told by the test what happens in it. Notes include those of the very end."""
    notes = Notes()
    loggers = Loggers(load_guests(settings).loggers, run_folder(path), CONFIG, step)
    try:
        async with loggers:
            loggers.tell_to(notes)
            yield loggers, notes
            loggers.close()
    finally:
        for text in loggers.untold:
            notes(text)


def a_batch(version: int, groups: int = 2, text: str = " 4") -> Batch:
    """Two answers a task, of which the first tokens are one version old."""
    old = max(version - 1, 0)

    def sample(reward: float) -> Sample:
        versions = [NOT_SAMPLED, old, version]
        return Sample([1, 2, 3], [False, True, True], [0.0, -0.1, -0.2], versions, FinishReason.STOP, text, reward)

    tasks = [Task(f"task-{number}", "2 + 2 =", [1], "4") for number in range(groups)]
    return Batch(version, [Group(n, task, [sample(1.0), sample(0.0)], old) for n, task in enumerate(tasks)])


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
