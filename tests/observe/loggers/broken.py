"""Loggers that fail in every way."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

from freerun.observe.loggers.base import Figures, LoggedRun, LoggedSample, Logger, Outcome


@dataclass(kw_only=True, eq=False)
class Writes(Logger):
    """Works, and writes what it is told to a file of the run's folder."""

    def begin(self, run: LoggedRun) -> str:
        self._file = run.folder / "written.txt"
        self._write(f"begins {os.getpid()}")
        return "writes"

    def step(self, step: int, figures: Figures, samples: Sequence[LoggedSample]) -> None:
        self._write(f"step {step}")

    def end(self, outcome: Outcome) -> None:
        self._write(outcome)

    def _write(self, line: str) -> None:
        with self._file.open("a") as file:
            file.write(line + "\n")


class Raises(Writes):
    """At each odd step, as a server does that is not always there."""

    def step(self, step: int, figures: Figures, samples: Sequence[LoggedSample]) -> None:
        if step % 2:
            raise ConnectionError(f"nobody answered at step {step}")
        super().step(step, figures, samples)


class CannotBegin(Logger):
    def begin(self, run: LoggedRun) -> str:
        raise PermissionError("no key")


class HangsAtTheBeginning(Logger):
    def begin(self, run: LoggedRun) -> str:
        (run.folder / "hangs").touch()
        return hang()


class HangsAtTheEnd(Writes):
    def end(self, outcome: Outcome) -> None:
        super().end(outcome)
        hang()


class Crashes(Logger):
    def begin(self, run: LoggedRun) -> str:
        return "begins"

    def step(self, step: int, figures: Figures, samples: Sequence[LoggedSample]) -> None:
        os.abort()


class NeedsSomething(Logger):
    library = "no_such_library"


def hang() -> str:
    while True:
        time.sleep(3600)
