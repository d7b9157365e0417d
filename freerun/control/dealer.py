"""The tasks of a run, each followed until it is done with: trained on, or dropped with a reason.

Invariant: a task is in exactly one place: in the stream, to be dealt again, in hand (waiting for its ticket), out with
a group, or done with. A checkpoint keeps the position of the stream and those of the tasks that were dealt and are not
done with; a resumed run deals these first, oldest first, and then the stream goes on. So every task is done with once,
whatever was cut off in between.
"""

from collections import deque
from collections.abc import Iterable, Iterator

from freerun.core import Task
from freerun.data.stream import Position, TaskStream


class Dealer(Iterator[Task]):
    """One caller deals: each task it takes is given out to a group before it takes the next."""

    def __init__(self, stream: TaskStream, again: Iterable[Position] = ()) -> None:
        self._stream = stream
        self._again = deque(again)
        self._in_hand: list[Position] = []
        self._out: dict[int, Position] = {}

    def __next__(self) -> Task:
        if self._again:
            place = self._again.popleft()
            task = self._stream.at(place)
        else:
            place, task = self._stream.position, next(self._stream)
        self._in_hand = [place]
        return task

    def dealt(self, group: int) -> None:
        """The task in hand is that group's now."""
        self._out[group] = self._in_hand.pop()

    def done(self, group: int) -> None:
        """The group's task is trained on or dropped: it will not be dealt again."""
        del self._out[group]

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
        return [*self._out.values(), *self._in_hand, *self._again]

    @property
    def fingerprint(self) -> str:
        return self._stream.fingerprint
