"""Was every task trained on once, or dropped for a reason? Answered from run.db's book alone, whatever befell the run.

A task stands at a place in the data: an epoch, and an index in it. Every place that the run has come past must have
ended, or be open: dealt, and not ended when the run did (a resumed run deals it again). What a resume has undone does
not count, for it is not in the book any more.
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from freerun.core import DataError
from freerun.core.groups import Position, Stage
from freerun.observe.book_reader import BookReader
from freerun.observe.folder import RunFolder

SHOWN = 10


@dataclass(frozen=True)
class Audit:
    trained: int
    """Places that were trained on."""
    dropped: dict[str, int]
    """Reason → places that were dropped for it, and never trained on."""
    lost: int
    """Places that were come past, and of which nothing became."""
    twice: int
    """Trainings of a place beyond its first."""
    open: int
    """Places that were dealt and have not ended."""
    rested: int = 0
    """Places whose task was solved, and sat out that pass."""
    tasks: int = 0
    """In a pass over the data."""
    begins: int = 1
    """How often the run began or went on."""
    undone: int = 0
    """Events that resumes have undone."""
    examples: list[str] = field(default_factory=list)
    """Some of what is wrong, in words."""

    @property
    def is_clean(self) -> bool:
        return not self.lost and not self.twice


def audit(folder: Path) -> Audit:
    """Checks what a run has done; where it goes on, so far. A DataError where there is no book."""
    book = BookReader(RunFolder(folder).samples)
    begins = book.beginnings()
    if not begins:
        raise DataError(
            f"{folder} has no book of groups in run.db: runs of supervised training have none, nor do those of older "
            "releases"
        )
    trained, dropped, rested, open_ = Counter[Position](), dict[Position, str](), set[Position](), set[Position]()
    last = next(reversed(book.settlements(book.oldest_settled()).values()), None)
    for entry in book.entries():
        place, event = entry.position, entry.event
        if event is None:
            rested.add(place)
        elif event.stage is Stage.TRAINED:
            trained[place] += 1
        elif event.reason:
            dropped[place] = event.reason.value
        else:
            open_.add(place)
    open_ |= set(last.state.owed) if last else set()
    tasks = begins[-1].tasks
    ended = trained.keys() | dropped.keys() | rested
    open_ -= ended
    known = ended | open_
    lost = [place for place in _come_past(known, tasks) if place not in known]
    twice = {place: count - 1 for place, count in trained.items() if count > 1}
    return Audit(
        trained=len(trained),
        dropped=dict(Counter(why for place, why in dropped.items() if place not in trained)),
        lost=len(lost),
        twice=sum(twice.values()),
        open=len(open_),
        rested=len(rested),
        tasks=tasks,
        begins=len(begins),
        undone=sum(one.undone for one in begins),
        examples=[f"lost: {_in_words(place)}" for place in lost[:SHOWN]]
        + [f"trained {count + 1} times: {_in_words(place)}" for place, count in list(twice.items())[:SHOWN]],
    )


def _come_past(seen: set[Position], tasks: int) -> list[Position]:
    """All places of the data up to the furthest that was seen."""
    furthest = max(seen, default=None)
    if furthest is None:
        return []
    before = [Position(epoch, index) for epoch in range(furthest.epoch) for index in range(tasks)]
    return before + [Position(furthest.epoch, index) for index in range(furthest.index + 1)]


def _in_words(place: Position) -> str:
    return f"task {place.index} of epoch {place.epoch}"
