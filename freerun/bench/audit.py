"""Was every task trained on, and none twice? A run's observer writes down what became of each, and when; `audit` reads
it.

The log is one JSON object a line, and goes on when the run does: each stretch, from the run's start or resumption to
its end, has a number. A step that was undone, because the run went on from a checkpoint before it, does not count.
"""

import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from freerun.core.groups import DropReason, GroupEvent, Stage
from freerun.core.observer import Observer
from freerun.core.records import StepRecord
from freerun.observe.folder import JsonLines, iter_lines

Place = tuple[int, int]
"""Where a task stands in the data: epoch, and index in it."""
_MEANT = {DropReason.NO_SIGNAL}
"""Why a group may be dropped though nothing went wrong."""


@dataclass
class RunLog(Observer):
    """What a run is given as `RunLog.setting(FILE)`."""

    file: str
    _open: JsonLines | None = field(default=None, init=False)
    _stretch: str = field(default="", init=False)

    @staticmethod
    def setting(file: Path) -> str:
        return f"observers=[{{name: freerun.bench.audit:RunLog, file: {file}}}]"

    def group(self, event: GroupEvent) -> None:
        if event.stage is Stage.DEALT or event.stage.is_end:
            place = {"epoch": event.position.epoch, "index": event.position.index}
            self._write(stage=event.stage, version=event.version, reason=event.reason, **place)

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
class Audit:
    trained: int
    """Groups; those of undone steps do not count."""
    lost: int
    """Tasks that were due and never trained on: nobody dealt them, nothing became of them, or they failed."""
    twice: int
    """Trainings of a task beyond its first in an epoch."""


def audit(file: Path) -> Audit:
    """Count the tasks of a run that has ended: what it left off in the last moment is neither lost nor trained."""
    groups = [line for line in iter_lines(file) if "stage" in line]
    stretches = list(dict.fromkeys(line["stretch"] for line in groups))
    last = [line for line in groups if line["stretch"] == stretches[-1]]
    trained = [_place(line) for line in _counted(groups, stretches)]
    meant = [_place(line) for line in groups if line["reason"] in _MEANT]
    return Audit(
        trained=len(trained),
        lost=len(_due(groups, last) - {*trained, *meant} - _left_off(last)),
        twice=sum(count - 1 for count in Counter(trained).values()),
    )


def _place(line: dict[str, Any]) -> Place:
    return line["epoch"], line["index"]


def _counted(groups: list[dict[str, Any]], stretches: list[str]) -> Iterator[dict[str, Any]]:
    """Trainings, without those of steps that a later stretch did again."""
    trained = [line for line in groups if line["stage"] == Stage.TRAINED]
    for number, stretch in enumerate(stretches):
        again_from = min(
            (line["version"] for line in trained if line["stretch"] in stretches[number + 1 :]), default=None
        )
        for line in trained:
            if line["stretch"] == stretch and (again_from is None or line["version"] < again_from):
                yield line


def _left_off(last: list[dict[str, Any]]) -> set[Place]:
    """What had been dealt and had not ended when the run did."""
    ends = {_place(line): line["reason"] or line["stage"] for line in last}
    return {place for place, end in ends.items() if end in (Stage.DEALT, DropReason.RUN_ENDED)}


def _due(groups: list[dict[str, Any]], last: list[dict[str, Any]]) -> set[Place]:
    """All places of the data up to the furthest of the last stretch: all of the epochs before that, as far as anybody
    has seen them."""
    furthest = max(map(_place, last))
    before = {place for place in map(_place, groups) if place[0] < furthest[0]}
    ends = {epoch: max(index for other, index in before if other == epoch) for epoch, _ in before}
    ends[furthest[0]] = furthest[1]
    return {(epoch, index) for epoch, end in ends.items() for index in range(end + 1)}
