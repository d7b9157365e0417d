"""The order in which tasks are taken, with an exact position.

Invariant: the task at `Position(epoch, index)` depends on the seed and the position alone, so a stream that seeks to
a position continues as if it had never stopped, and every epoch yields every task once.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from hashlib import blake2b
from random import Random

from freerun.core import DataError, Task
from freerun.core.groups import Position


class TaskStream(Iterator[Task]):
    """Tasks, epoch after epoch, without end if `epochs` is None. `len` is the number of tasks in one epoch."""

    def __init__(self, tasks: Sequence[Task], *, seed: int, shuffle: bool, epochs: int | None) -> None:
        if not tasks:
            raise DataError("there are no tasks to stream: check source")
        self._tasks = tasks
        self._seed = seed
        self._shuffle = shuffle
        self._epochs = epochs
        self._position = Position()
        self._orders: dict[int, Sequence[int]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def __next__(self) -> Task:
        if self._epochs is not None and self._position.epoch >= self._epochs:
            raise StopIteration
        task = self.at(self._position)
        self._position = self.after(self._position)
        return task

    @property
    def position(self) -> Position:
        """Where the next task is; after the last one, the first of the epoch that is not there."""
        return self._position

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything that positions depend on: two streams with the same fingerprint have the same task at
        each position. Prompts may be rendered differently: the tasks are the same. Where there are none, the other
        columns tell tasks apart."""
        order = f"shuffled by {self._seed}" if self._shuffle else "in order"
        every = blake2b(order.encode(), digest_size=16)
        for task in self._tasks:
            asked = task.extra.get("prompt", task.prompt) or task.extra
            every.update(repr((task.id, asked, task.answer)).encode())
        return every.hexdigest()

    def after(self, position: Position) -> Position:
        """The position behind that one."""
        last = position.index + 1 == len(self._tasks)
        return Position(position.epoch + 1) if last else Position(position.epoch, position.index + 1)

    def at(self, position: Position) -> Task:
        """The task at a position, wherever the stream is."""
        return self._tasks[self._order_of(position.epoch)[position.index]]

    def seek(self, position: Position) -> None:
        """Continue at a position that this stream, or one like it, was at."""
        if position.epoch < 0 or not 0 <= position.index < len(self._tasks):
            raise DataError(
                f"{position} is not in data of {len(self._tasks)} tasks: it has changed since the position was saved"
            )
        self._position = position

    def _order_of(self, epoch: int) -> Sequence[int]:
        """Cached for the epoch that the stream is in, and for one other."""
        if epoch not in self._orders:
            here = self._position.epoch
            self._orders = {e: order for e, order in self._orders.items() if e == here} | {epoch: self._shuffled(epoch)}
        return self._orders[epoch]

    def _shuffled(self, epoch: int) -> Sequence[int]:
        places = range(len(self._tasks))
        if not self._shuffle:
            return places
        # Python promises the same random() for the same seed in every version; it does not for shuffle().
        random = Random(f"{self._seed}/{epoch}").random
        return sorted(places, key=lambda _: random())
