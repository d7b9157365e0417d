"""Where every group on its way is, since when, and on which engine: for whoever says what is waited for.

Consumes the events of the book of groups, which knows the stages and not the times.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from freerun.core import Version
from freerun.core.groups import GroupEvent, Stage

_ON_ITS_WAY = (Stage.ADMITTED, Stage.SAMPLED, Stage.JUDGED)


@dataclass(slots=True)
class Place:
    stage: Stage
    since_s: float
    """When it came to that stage, by the loop's clock."""
    version: Version
    samples: int
    engine: str = ""
    """The one that was asked last."""


class Places:
    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        """`clock` is that of the running loop unless told."""
        self._clock = clock
        self._places: dict[int, Place] = {}

    def now_s(self) -> float:
        return self._clock() if self._clock else asyncio.get_running_loop().time()

    def note(self, event: GroupEvent) -> None:
        if event.stage not in _ON_ITS_WAY:
            self._places.pop(event.group, None)
        elif place := self._places.get(event.group):
            place.stage, place.since_s = event.stage, self.now_s()
        else:
            self._places[event.group] = Place(event.stage, self.now_s(), event.version, event.samples)

    def asked(self, group: int, engine: str) -> None:
        """That engine was asked for the group."""
        if place := self._places.get(group):
            place.engine, place.since_s = engine, self.now_s()

    def count(self, stage: Stage) -> int:
        return sum(one.stage is stage for one in self._places.values())

    def of(self, *stages: Stage) -> list[Place]:
        """Those at one of these stages, the longest there first."""
        return sorted((one for one in self._places.values() if one.stage in stages), key=lambda one: one.since_s)
