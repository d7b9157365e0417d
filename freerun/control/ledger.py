"""Everything the controller decides passes through the ledger: one entry a decision, in the order they were made.

This one is kept in memory. A durable one has the same four methods, and the loop does not change for it.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from freerun.core import Group, Released, Version


class Ledger(Protocol):
    def admitted(self, group: int, task: str, samples: int, version: Version) -> None: ...

    def judged(self, group: Group, failures: list[str]) -> None:
        """The group's rewards are known; `failures` names why some of its samples have none."""
        ...

    def trained(self, group: int, version: Version) -> None:
        """The step at `version` consumed the group."""
        ...

    def dropped(self, group: int, reason: Released, version: Version) -> None: ...


@dataclass(slots=True, frozen=True)
class Entry:
    what: str
    group: int
    version: Version
    detail: str = ""


@dataclass
class MemoryLedger:
    entries: list[Entry] = field(default_factory=list)
    drops: Counter[Released] = field(default_factory=Counter)
    judge_failures: Counter[str] = field(default_factory=Counter)

    def admitted(self, group: int, task: str, samples: int, version: Version) -> None:
        self.entries.append(Entry("admitted", group, version, task))

    def judged(self, group: Group, failures: list[str]) -> None:
        self.judge_failures.update(failures)
        self.entries.append(Entry("judged", group.id, group.oldest_version, " ".join(map(str, group.rewards))))

    def trained(self, group: int, version: Version) -> None:
        self.entries.append(Entry("trained", group, version))

    def dropped(self, group: int, reason: Released, version: Version) -> None:
        self.drops[reason] += 1
        self.entries.append(Entry("dropped", group, version, reason))
