"""The book of groups: where every task that was dealt stands, written by events and read by everybody.

    dealt → admitted → sampled → judged → ready → training → trained
                └─────────┴─────────┴───────┴────────┴───→ dropped, with a reason

Invariant: a group is in exactly one stage, moves along these arrows alone, and ends once. The book holds the groups
that have not ended, and counts of those that have: its size does not grow with the run. Whoever wants to keep the
events, in a file or a database, listens to them.

Admission reads how many samples were submitted; the look-ahead how many groups are on their way; the buffer which are
ready and which are still running; a checkpoint which tasks are owed and how the others ended.

Consumes events; produces the state of every open group. `until` waits for a condition on the book (or on whatever
`notify` is called for), and is unblocked by the next event that makes it true.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from freerun.core import DropReason, Group, Task, Version
from freerun.core.groups import GroupEvent, Position, Stage, Tally, TallyCounter

_NEXT: dict[Stage, frozenset[Stage]] = {
    Stage.DEALT: frozenset({Stage.ADMITTED}),
    Stage.ADMITTED: frozenset({Stage.SAMPLED, Stage.DROPPED}),
    Stage.SAMPLED: frozenset({Stage.JUDGED, Stage.DROPPED}),
    Stage.JUDGED: frozenset({Stage.READY, Stage.DROPPED}),
    Stage.READY: frozenset({Stage.TRAINING, Stage.DROPPED}),
    Stage.TRAINING: frozenset({Stage.TRAINED, Stage.DROPPED}),
}
_RUNNING = (Stage.ADMITTED, Stage.SAMPLED, Stage.JUDGED)
_MATTERS = (Stage.READY, Stage.TRAINING, Stage.DROPPED)
"""Stages that can end somebody's wait: there is a group more to train on, or one less on its way."""


@dataclass(slots=True)
class OpenGroup:
    """A group that has not ended."""

    id: int
    task: Task
    position: Position
    samples: int
    stage: Stage = Stage.DEALT
    version: Version = 0
    """The engines' version when it was admitted: no token of it is older."""
    rewards: tuple[float, ...] = ()
    group: Group | None = None
    """Its samples, from `judged` on."""
    engine: str = ""
    """The name of the engine that it was asked of last."""


class GroupBook:
    def __init__(self, tally: Tally | None = None, next_group: int = 0, used: Collection[int] = ()) -> None:
        """`tally` and `next_group` are those of the run that this one goes on from, and so are the ids in `used`, which
        are not given again."""
        self.listeners: list[Callable[[GroupEvent], None]] = []
        self.submitted = 0
        """Samples that were admitted and not dropped, since this process began."""
        self._open: dict[int, OpenGroup] = {}
        self._count = Counter[Stage]()
        self._ended = TallyCounter(tally)
        self._next_group, self._used = next_group, set(used)
        self._changed = asyncio.Event()

    def deal(self, position: Position, task: Task, samples: int) -> OpenGroup:
        """A task was taken from the data: it becomes the next group."""
        while self._next_group in self._used:
            self._used.remove(self._next_group)
            self._next_group += 1
        dealt = self._open[self._next_group] = OpenGroup(self._next_group, task, position, samples)
        self._next_group += 1
        self._count[Stage.DEALT] += 1
        self._tell(dealt)
        return dealt

    def found_ready(self, group: Group, position: Position, samples: int) -> None:
        """The run that this one goes on from has left it, judged: it waits for the trainer."""
        opened = OpenGroup(group.id, group.task, position, samples, Stage.READY, group.admitted_at)
        opened.group, opened.rewards = group, tuple(group.rewards)
        self._open[group.id] = opened
        self._count[Stage.READY] += 1
        self.submitted += samples
        self.notify()
        self._tell(opened)

    def admitted(self, group: int, version: Version) -> None:
        opened = self._move(group, Stage.ADMITTED)
        opened.version = version
        self.submitted += opened.samples
        self._tell(opened)

    def sampled(self, group: int) -> None:
        self._tell(self._move(group, Stage.SAMPLED))

    def judged(self, group: Group, judgements: Sequence[str]) -> None:
        """`judgements` says how judging each sample ended, also of those without a reward, which are not in `group`."""
        opened = self._move(group.id, Stage.JUDGED)
        opened.group, opened.rewards = group, tuple(group.rewards)
        self._tell(opened, judgements=tuple(judgements))

    def made_ready(self, group: int) -> None:
        self._tell(self._move(group, Stage.READY))

    def training(self, group: int) -> None:
        self._tell(self._move(group, Stage.TRAINING))

    def trained(self, group: int, version: Version) -> None:
        """The step at `version` consumed it."""
        self._tell(self._move(group, Stage.TRAINED), version)

    def drop(self, group: int, reason: DropReason, version: Version) -> None:
        opened = self._move(group, Stage.DROPPED)
        self.submitted -= opened.samples
        self._tell(opened, version, reason)

    @property
    def open(self) -> list[OpenGroup]:
        """Groups that were admitted and have not ended, oldest first."""
        return [opened for opened in self._open.values() if opened.stage is not Stage.DEALT]

    @property
    def num_waiting(self) -> int:
        """Groups on their way to the trainer, or waiting for it."""
        return self.num_running + self._count[Stage.READY]

    @property
    def num_running(self) -> int:
        """Groups that are being sampled or judged."""
        return sum(self._count[stage] for stage in _RUNNING)

    @property
    def num_ready(self) -> int:
        return self._count[Stage.READY]

    @property
    def running(self) -> list[Version]:
        """The versions at which the running groups were admitted."""
        return [opened.version for opened in self._open.values() if opened.stage in _RUNNING]

    @property
    def ready(self) -> list[Group]:
        return [opened.group for opened in self._open.values() if opened.stage is Stage.READY and opened.group]

    @property
    def owed(self) -> list[Position]:
        """Tasks that were dealt and have not ended, oldest first."""
        return [opened.position for opened in self._open.values()]

    @property
    def next_group(self) -> int:
        """The id of the next group to be admitted: one that was only dealt is dealt again by a resumed run."""
        dealt = (opened.id for opened in self._open.values() if opened.stage is Stage.DEALT)
        return min(dealt, default=self._next_group)

    @property
    def tally(self) -> Tally:
        return self._ended.tally

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for the condition, which is looked at again whenever a group becomes ready, is taken or is dropped."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def notify(self) -> None:
        """Something else changed that a condition may depend on."""
        self._changed.set()

    def _move(self, group: int, stage: Stage) -> OpenGroup:
        opened = self._open[group]
        if stage not in _NEXT[opened.stage]:
            raise ValueError(f"group {group} is {opened.stage} and cannot become {stage}")
        self._count[opened.stage] -= 1
        opened.stage = stage
        if stage.is_end:
            del self._open[group]
        else:
            self._count[stage] += 1
        if stage in _MATTERS:
            self.notify()
        return opened

    def _tell(
        self,
        opened: OpenGroup,
        version: Version | None = None,
        reason: DropReason | None = None,
        judgements: tuple[str, ...] = (),
    ) -> None:
        about = opened.version if version is None else version
        event = GroupEvent(
            *(opened.stage, opened.id, opened.task.id, opened.position, about, opened.samples, opened.rewards),
            *(judgements, reason),
        )
        self._ended.count(event)
        for listener in self.listeners:
            listener(event)
