"""The tasks of a run, each followed until it is done with: trained on, or dropped with a reason.

Invariant: a task is in exactly one place: in the stream, to be dealt again, in hand (waiting for its ticket), out with
a group, or done with. A checkpoint keeps the position of the stream and those of the tasks that were dealt and are not
done with; a resumed run deals these first, oldest first, and then the stream goes on. So every task is done with once,
whatever was cut off in between; one that sits out a pass over the data is not dealt in it.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from freerun.control.solved import SitOut, SolvedTasks
from freerun.core import Task
from freerun.data.stream import Position, TaskStream


class Dealer(Iterator[Task]):
    """One caller deals: each task it takes is given out to a group before it takes the next."""

    def __init__(self, stream: TaskStream, again: Iterable[Position] = (), solved: SolvedTasks | None = None) -> None:
        self._stream = stream
        self._again = deque(again)
        self._solved = SolvedTasks() if solved is None else solved
        self._in_hand: list[tuple[Position, Task]] = []
        self._out: dict[int, tuple[Position, Task]] = {}

    def __next__(self) -> Task:
        if self._again:
            place = self._again.popleft()
            task = self._stream.at(place)
        else:
            place, task = self._stream.position, next(self._stream)
            while self._solved.sits_out(task.id, place.epoch):
                place, task = self._stream.position, next(self._stream)
        self._in_hand = [(place, task)]
        return task

    def dealt(self, group: int) -> None:
        """The task in hand is that group's now."""
        self._out[group] = self._in_hand.pop()

    def done(self, group: int, rewards: Sequence[float] = ()) -> None:
        """The group's task is trained on or dropped: it will not be dealt again in this pass. What its answers were
        worth, where they were judged, says whether it sits out the next."""
        place, task = self._out.pop(group)
        if rewards:
            self._solved.note(task.id, place.epoch, rewards)

    def __len__(self) -> int:
        """Tasks in a pass over the data."""
        return len(self._stream)

    @property
    def position(self) -> Position:
        """Of the next task that was never dealt."""
        return self._stream.position

    @property
    def owed(self) -> list[Position]:
        """Tasks that were dealt and are not done with, oldest first."""
        return [*(place for place, _ in (*self._out.values(), *self._in_hand)), *self._again]

    @property
    def num_solved(self) -> int:
        """Tasks that were solved when they were last dealt, where what is solved may rest."""
        return len(self._solved)

    @property
    def resting(self) -> dict[str, SitOut]:
        return self._solved.resting

    @property
    def fingerprint(self) -> str:
        return self._stream.fingerprint
