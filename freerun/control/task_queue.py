"""The tasks of a run in the order they are asked: first those owed by the run that it goes on from, then the data.

A task that sits out a pass over the data, because it is solved, is not asked in it. What becomes of a task that was
taken from here is in the book of groups.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from freerun.control.solved import SolvedTasks
from freerun.core import Task
from freerun.core.groups import Position
from freerun.data.stream import TaskStream


class TaskQueue(Iterator[tuple[Position, Task]]):
    def __init__(
        self,
        stream: TaskStream,
        owed: Iterable[Position] = (),
        solved: SolvedTasks | None = None,
        rested: Callable[[Position, str], None] = lambda position, task: None,
    ) -> None:
        """`rested` is told of each task that sits out a pass, by its position and id."""
        self._stream, self._rested = stream, rested
        self._owed = deque(owed)
        self.solved = SolvedTasks() if solved is None else solved

    def __next__(self) -> tuple[Position, Task]:
        if self._owed:
            position = self._owed.popleft()
            return position, self._stream.at(position)
        while True:
            position, task = self._stream.position, next(self._stream)
            if not self.solved.sits_out(task.id, position.epoch):
                return position, task
            self._rested(position, task.id)

    def __len__(self) -> int:
        """Tasks in a pass over the data."""
        return len(self._stream)

    @property
    def position(self) -> Position:
        """The position of the next task that was never dealt."""
        return self._stream.position

    @property
    def owed(self) -> list[Position]:
        """Tasks of the run before this one that have not been asked again yet, oldest first."""
        return list(self._owed)

    @property
    def fingerprint(self) -> str:
        return self._stream.fingerprint
