"""Batches of examples to learn from, the next of which is made while the trainer learns from the present one: to
tokenise 64 worked solutions takes some 40 ms of a CPU, which a small model on a GPU would wait for in each step."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

from freerun.core import Batch, Group, Sample, Task, Version
from freerun.core.groups import Position
from freerun.data.stream import TaskStream


class ExamplesAhead(Iterator[Batch]):
    """Examples in shuffled order, epoch after epoch, a group each. A context manager, which waits for its thread.

    Promises that `position` is where the stream goes on behind the newest batch that somebody has taken, whatever has
    been made since. An example that cannot be made raises when it is asked for.
    """

    def __init__(
        self, stream: TaskStream, examples: Callable[[Task], list[Sample]], num_tasks: int, version: Version
    ) -> None:
        self._stream, self._examples, self._num_tasks, self._version = stream, examples, num_tasks, version
        self.position = stream.position
        self._thread = ThreadPoolExecutor(1, "examples")
        self._next: Future[tuple[Batch, Position]] | None = None

    def __next__(self) -> Batch:
        making = self._next or self._thread.submit(self._make)
        batch, self.position = making.result()
        self._next = self._thread.submit(self._make)
        return batch

    def _make(self) -> tuple[Batch, Position]:
        tasks = islice(self._stream, self._num_tasks)
        groups = [Group(i, task, self._examples(task), self._version) for i, task in enumerate(tasks)]
        batch = Batch(self._version, groups)
        self._version += 1
        return batch, self._stream.position

    def __enter__(self) -> "ExamplesAhead":
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)
