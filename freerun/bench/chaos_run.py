"""A run of `freerun train`, in a process of its own, that is gone on with by `freerun resume` whenever it ends too
early; and its log, from which its steps are read as they are made."""

import asyncio
import json
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from freerun.bench.run_log import RunLog
from freerun.config.tree import RunConfig
from freerun.core.errors import FreerunError
from freerun.machine.parent import kill_with_parent
from freerun.observe.folder import RunFolder
from freerun.run.resume import can_go_on, newest_step

_TAIL_LINES = 12
_END_S = 20.0


@dataclass(frozen=True)
class StepMade:
    step: int
    at_s: float
    """By this machine's monotonic clock."""


@dataclass
class SupervisedRun:
    settings: Sequence[str]
    """A file and overrides, as `freerun train` takes them."""
    runs: Path
    name: str
    logs: Path
    """Where its log and what it prints go: never on a disk that is filled."""
    last: int
    """The step with which it is over."""
    observers: list[Any] = field(default_factory=list)
    """Those that the file names."""
    steps: list[StepMade] = field(default_factory=list)
    """All that were made, those that were done again twice."""
    starts: int = 0
    started_s: float = 0.0
    """When the first controller was started."""
    process: Process | None = None
    _read: int = 0

    @classmethod
    def of(cls, config: RunConfig, settings: Sequence[str], runs: Path, name: str, logs: Path) -> "SupervisedRun":
        return cls(settings, runs, name, logs, config.control.steps, config.model_dump(mode="json")["observers"])

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.runs / self.name)

    @property
    def log(self) -> Path:
        return self.logs / f"{self.name}.jsonl"

    @property
    def printed(self) -> Path:
        return self.logs / f"{self.name}.txt"

    @property
    def last_step(self) -> int:
        return self.steps[-1].step if self.steps else 0

    @property
    def ended(self) -> int | None:
        """The exit code of the controller, if it has ended."""
        return self.process.returncode if self.process else None

    async def train(self) -> None:
        observers = [*self.observers, {"name": f"{RunLog.__module__}:{RunLog.__name__}", "file": str(self.log)}]
        where = [f"runs={self.runs}", f"name={self.name}", f"observers={json.dumps(observers)}"]
        self.started_s = time.monotonic()
        await self._start("train", *self.settings, *where)

    async def resume(self) -> None:
        """What has ended before it had a folder is begun once more: there is nothing to go on with."""
        if self.folder.config.exists():
            await self._start("resume", str(self.folder.path))
        else:
            await self.train()

    async def _start(self, *arguments: str) -> None:
        self.starts += 1
        with self.printed.open("ab") as printed:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "freerun.cli.main", *arguments),
                stdin=DEVNULL,
                stdout=printed,
                stderr=printed,
                start_new_session=True,
                preexec_fn=kill_with_parent,
            )

    async def end(self) -> None:
        """If it has not by itself."""
        if self.process is None or self.process.returncode is not None:
            return
        for which in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                self.process.send_signal(which)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), _END_S)
                return

    def look(self) -> list[StepMade]:
        """The steps that were made since it was last asked."""
        new: list[StepMade] = []
        with suppress(FileNotFoundError), self.log.open("rb") as log:
            log.seek(self._read)
            for line in log:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                said = json.loads(line)
                if "step" in said:
                    new.append(StepMade(said["step"], said["at_s"]))
        self.steps += new
        return new

    def can_be_struck(self) -> bool:
        """A run without a checkpoint cannot be gone on with."""
        return can_go_on(self.folder)

    @property
    def is_complete(self) -> bool:
        """Its last step is saved: there is nothing to go on with, however it ended."""
        return newest_step(self.folder) >= self.last

    def failure(self, what: str) -> FreerunError:
        printed = self.printed.read_text(errors="replace").splitlines() if self.printed.exists() else []
        said = [line for line in printed if line.startswith("freerun: ")] or printed
        tail = "\n".join(printed[-_TAIL_LINES:])
        return FreerunError(f"{what}: {said[-1] if said else 'it said nothing'} (in {self.printed})", tail)


async def undisturbed(run: SupervisedRun) -> float:
    """The whole run. The seconds that it took."""
    await run.train()
    assert run.process is not None
    try:
        if await run.process.wait():
            raise run.failure("the run fails without being disturbed")
    finally:
        await run.end()
    run.look()
    return time.monotonic() - run.started_s
