"""The order in which tasks are taken, with an exact position.

Invariant: the task at `Position(epoch, index)` depends on the seed and the position alone, so a stream that seeks to
a position continues as if it had never stopped, and every epoch yields every task once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from freerun.core import DataError, Task


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Of the next task: its epoch, and its place in that epoch's order."""

    epoch: int = 0
    index: int = 0


class TaskStream(Iterator[Task]):
    """Tasks, epoch after epoch; `epochs` None is endless. `len` is of one epoch."""

    def __init__(self, tasks: Sequence[Task], *, seed: int, shuffle: bool, epochs: int | None) -> None:
        if not tasks:
            raise DataError("there are no tasks to stream: check source")
        self._tasks = tasks
        self._seed = seed
        self._shuffle = shuffle
        self._epochs = epochs
        self._position = Position()
        self._order = self._order_of(0)

    def __len__(self) -> int:
        return len(self._tasks)

    def __next__(self) -> Task:
        epoch, index = self._position.epoch, self._position.index
        if self._epochs is not None and epoch >= self._epochs:
            raise StopIteration
        task = self._tasks[self._order[index]]
        if index + 1 < len(self._tasks):
            self._position = Position(epoch, index + 1)
        else:
            self._move_to(Position(epoch + 1))
        return task

    @property
    def position(self) -> Position:
        """Where the next task is; after the last one, the first of the epoch that is not there."""
        return self._position

    def seek(self, position: Position) -> None:
        """Continue at a position that this stream, or one like it, was at."""
        if position.epoch < 0 or not 0 <= position.index < len(self._tasks):
            raise DataError(
                f"{position} is not in data of {len(self._tasks)} tasks: it has changed since the position was saved"
            )
        self._move_to(position)

    def _move_to(self, position: Position) -> None:
        if position.epoch != self._position.epoch:
            self._order = self._order_of(position.epoch)
        self._position = position

    def _order_of(self, epoch: int) -> Sequence[int]:
        places = range(len(self._tasks))
        if not self._shuffle:
            return places
        # Python promises the same random() for the same seed in every version; of shuffle() it promises nothing.
        random = Random(f"{self._seed}/{epoch}").random
        return sorted(places, key=lambda _: random())
