"""The bound that holds: no token is trained on that is older than η, and the user picks what gives way.

The paper's formula bounds what is admitted. It does not bound what is trained: a long answer is overtaken by shorter
ones that were admitted later, and is older than η when its turn comes. Each policy here closes that gap at the moment
of training, when a batch is chosen among the judged groups.

`Wait` drops nothing and masks nothing. A group whose oldest token is of version w must be trained at version w + η at
the latest: its deadline. Batches are chosen earliest deadline first, and a batch is given out only if everything left
behind, running groups included, still fits before its deadline:

    for every d ≥ v:  (groups left with deadline ≤ d)  ≤  (d − v) · groups_per_step

Waiting for running groups always ends: at version v the formula has admitted at most (η + 1) batches beyond those
trained, all with deadlines ≤ v + η, so the inequality's left side fits one more batch than its right, and the batch
taken now is that one. Worked example, η = 2, one group a batch: A, B, C are admitted at version 0 (deadline 2). A is
trained at 0; D is admitted at 1 and ends first. Training D at 1 would leave B and C for the one place at 2: so the
trainer waits for B or C.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from freerun.core import Group, Version


@dataclass(slots=True)
class Selection:
    """The groups to train on now, oldest first, and those that can never be trained on."""

    take: list[Group] = field(default_factory=list)
    drop: list[Group] = field(default_factory=list)
    masked_tokens: int = 0


def in_time(groups: Iterable[Group], version: Version, max_staleness: int, count: int) -> list[Group]:
    """Those that can all be trained on before they are too old, from the step at `version` on, `count` of them a step,
    oldest first: for groups that an earlier run left, whose batches may have been larger."""
    chosen: list[Group] = []
    for group in sorted(groups, key=lambda group: (group.oldest_version, group.id)):
        deadline = group.oldest_version + max_staleness
        if len(chosen) < (deadline - version + 1) * count:
            chosen.append(group)
    return chosen


class Bound(Protocol):
    max_staleness: int

    def late(self, ready: list[Group], running: Iterable[Version], version: Version, count: int) -> Version | None:
        """Where running groups hold back a batch that is ready: those admitted at this version or before it. None
        where nobody must come first."""
        ...

    def select(self, ready: list[Group], running: Iterable[Version], version: Version, count: int) -> Selection:
        """Choose `count` of the ready groups for the step at `version`; fewer than that taken means wait.

        `running` holds, for each group still on its way, the version at which it was admitted.
        """
        ...


class Wait:
    """The trainer waits for the groups whose time has come. Nothing is lost."""

    def __init__(self, max_staleness: int) -> None:
        self.max_staleness = max_staleness

    def select(self, ready: list[Group], running: Iterable[Version], version: Version, count: int) -> Selection:
        take = _by_deadline(ready)[:count]
        if len(take) < count or self.late(ready, running, version, count) is not None:
            return Selection()
        return Selection(take=take)

    def late(self, ready: list[Group], running: Iterable[Version], version: Version, count: int) -> Version | None:
        left = _by_deadline(ready)[count:]
        # A running group's tokens are no older than its admission, so its deadline is taken from that.
        deadlines = sorted(w + self.max_staleness for w in [*(g.oldest_version for g in left), *running])
        over = [d for d in set(deadlines) if bisect_right(deadlines, d) > (d - version) * count]
        return min(over) - self.max_staleness if over else None


class Drop:
    """The trainer never waits for a particular group; one with a token too old is dropped whole, and refilled."""

    def __init__(self, max_staleness: int) -> None:
        self.max_staleness = max_staleness

    def late(self, ready: list[Group], running: Iterable[Version], version: Version, count: int) -> Version | None:
        return None

    def select(self, ready: list[Group], running: Iterable[Version], version: Version, count: int) -> Selection:
        fresh = [group for group in ready if version - group.oldest_version <= self.max_staleness]
        stale = [group for group in ready if version - group.oldest_version > self.max_staleness]
        return Selection(take=_oldest(fresh, count), drop=stale)


class Mask:
    """The trainer never waits for a particular group; tokens too old carry no loss. A group of none else is dropped."""

    def __init__(self, max_staleness: int) -> None:
        self.max_staleness = max_staleness

    def late(self, ready: list[Group], running: Iterable[Version], version: Version, count: int) -> Version | None:
        return None

    def select(self, ready: list[Group], running: Iterable[Version], version: Version, count: int) -> Selection:
        oldest_allowed = version - self.max_staleness
        alive = [group for group in ready if group.newest_version >= oldest_allowed]
        dead = [group for group in ready if group.newest_version < oldest_allowed]
        take = _oldest(alive, count)
        return Selection(take=take, drop=dead, masked_tokens=_mask(take, oldest_allowed))


def _by_deadline(groups: list[Group]) -> list[Group]:
    return sorted(groups, key=lambda group: (group.oldest_version, group.id))


def _oldest(groups: list[Group], count: int) -> list[Group]:
    return sorted(groups, key=lambda group: group.id)[:count] if len(groups) >= count else []


def _mask(groups: list[Group], oldest_allowed: Version) -> int:
    return sum(sample.mask_older_than(oldest_allowed) for group in groups for sample in group.samples)
