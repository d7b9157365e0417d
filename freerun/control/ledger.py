"""Everything the controller decides passes through the ledger: one entry a decision, in the order they were made.

This one is kept in memory; what a checkpoint keeps of it is the tally. A durable one has the same methods, and the loop
does not change for it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from freerun.core import Group, Released, Version


@dataclass(slots=True, frozen=True)
class Tally:
    """How groups ended since the run's start, resumes included."""

    trained: int = 0
    dropped: dict[Released, int] = field(default_factory=dict)
    judgements: dict[str, int] = field(default_factory=dict)
    """Samples, by how judging them ended."""


class Ledger(Protocol):
    def admitted(self, group: int, task: str, samples: int, version: Version) -> None: ...

    def judged(self, group: Group, reasons: Sequence[str]) -> None:
        """The group's rewards are known; `reasons` says of every sample how judging it ended, those included that have
        no reward and are not in the group."""
        ...

    def trained(self, group: int, version: Version) -> None:
        """The step at `version` consumed the group."""
        ...

    def dropped(self, group: int, reason: Released, version: Version) -> None: ...

    @property
    def tally(self) -> Tally: ...


@dataclass(slots=True, frozen=True)
class Entry:
    what: str
    group: int
    version: Version
    detail: str = ""


class MemoryLedger:
    """Entries since the process began; counts since the run did: `before` is the tally it goes on from."""

    def __init__(self, before: Tally | None = None) -> None:
        before = before or Tally()
        self.entries: list[Entry] = []
        self.drops = Counter(before.dropped)
        self.judgements = Counter(before.judgements)
        self._trained = before.trained

    @property
    def tally(self) -> Tally:
        return Tally(self._trained, dict(self.drops), dict(self.judgements))

    def admitted(self, group: int, task: str, samples: int, version: Version) -> None:
        self.entries.append(Entry("admitted", group, version, task))

    def judged(self, group: Group, reasons: Sequence[str]) -> None:
        self.judgements.update(reasons)
        self.entries.append(Entry("judged", group.id, group.oldest_version, " ".join(map(str, group.rewards))))

    def trained(self, group: int, version: Version) -> None:
        self._trained += 1
        self.entries.append(Entry("trained", group, version))

    def dropped(self, group: int, reason: Released, version: Version) -> None:
        self.drops[reason] += 1
        self.entries.append(Entry("dropped", group, version, reason))
