"""What a benchmark is told of a run in another process: a log, one JSON object a line, which goes on when the run does;
and in the end what became of its tasks.
"""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from freerun.core.groups import DropReason
from freerun.core.observer import Observer
from freerun.core.records import StepRecord
from freerun.observe.audit import audit
from freerun.observe.folder import JsonLines

_MEANT = {DropReason.NO_SIGNAL, DropReason.TOO_STALE}
"""Why a group may be dropped though nothing went wrong."""


@dataclass
class RunLog(Observer):
    """What a run is given as `RunLog.setting(FILE)`."""

    file: str
    _open: JsonLines | None = field(default=None, init=False)
    _stretch: str = field(default="", init=False)

    @staticmethod
    def setting(file: Path) -> str:
        return f"observers=[{{name: freerun.bench.run_log:RunLog, file: {file}}}]"

    def note(self, text: str) -> None:
        self._write(note=text)

    def step(self, record: StepRecord) -> None:
        self._write(step=record.step, tokens=record.tokens_trained)

    def close(self) -> None:
        """A run that waits for its trainer goes on with the same observers."""
        if self._open:
            self._open.close()
            self._open = None

    def _write(self, **what: Any) -> None:
        if self._open is None:
            self._open = JsonLines(Path(self.file))
            self._stretch = f"{os.getpid()}-{time.monotonic()}"
        self._open.append({"at_s": time.monotonic(), "stretch": self._stretch} | what)


@dataclass(frozen=True)
class Audited:
    """What became of a run's tasks, by its book. Here a task that was dropped because something failed is lost, too."""

    trained: int
    lost: int
    twice: int

    @classmethod
    def of(cls, folder: Path) -> "Audited":
        found = audit(folder)
        failed = sum(count for why, count in found.dropped.items() if DropReason(why) not in _MEANT)
        return cls(found.trained, found.lost + failed, found.twice)
