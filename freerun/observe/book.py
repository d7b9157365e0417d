"""Keeps the book of groups in run.db, as an observer: each event as it happens, and the tokens of groups that wait.

Consumes what the loop tells; produces the tables of `book_tables.py`, by a thread of its own that writes whatever has
come in, in one transaction. The loop hands over objects and waits for nothing, save `flush`, which a checkpoint waits
for: a checkpoint is never ahead of the book. A kill loses the last milliseconds, and never a part out of the middle.

A disk that refuses is a note. What could not be written is tried again while memory has room for it; then the book ends
where it is, and the run goes on without it.
"""

import asyncio
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue

from freerun.core import DropReason, Group, Version
from freerun.core.groups import GroupEvent, Position, Stage
from freerun.core.observer import Observer
from freerun.core.records import StepRecord
from freerun.core.reports import StepResult
from freerun.core.state import RunState
from freerun.observe.book_tables import Begun, BookDatabase, Done, Entry, Happened, Ready, Rested, Settled, Stepped
from freerun.observe.database import put_aside

MOST_TRAINED_BYTES = 16 * 2**30
"""Bytes of trained groups that no checkpoint covers: a run that saves none must not fill its disk by them."""
_MOST_WAITING = 200_000
"""Entries that wait for a disk that refuses them."""
_AGAIN_S = 2.0
_CLOSE_S = 10.0
_FLUSH_S = 10.0
_TOGETHER = 2_000
_TOGETHER_S = 0.05
"""What happens within so long is written together: a transaction writes whole pages, however little it says."""


class KeptBook(Observer):
    def __init__(self, path: Path, begun: Begun, tell: Observer, covered: Callable[[], Version] = lambda: 0) -> None:
        """Nothing is written before `begin`, or the first event. Notes are told to `tell`; `covered` says which version
        the oldest checkpoint is of, 0 without any: what was before it is not kept."""
        self._tell, self._begun, self._covered = tell, begun, covered
        self._writer: BookWriter | None = None
        self._path = path
        self._judged: dict[int, Group] = {}
        """By id: groups that are judged and not ready."""

    def begin(self) -> None:
        """The run begins, or goes on: what is undone by that goes."""
        if self._writer is None:
            self._writer = BookWriter(self._path)
            self._writer.put(self._begun)

    def group(self, event: GroupEvent) -> None:
        if event.reason is DropReason.RUN_ENDED:  # it is owed, and may be ready when the run goes on
            self._judged.pop(event.group, None)
            return
        if event.stage is Stage.READY:
            self._put(Ready(event.position, self._judged.pop(event.group)))
        elif event.stage.is_end:
            self._judged.pop(event.group, None)
        self._put(Happened(event))

    def judged(self, group: Group) -> None:
        self._judged[group.id] = group

    def rested(self, position: Position, task: str) -> None:
        """A solved task sits out its pass."""
        self._put(Rested(position, task))

    def stepped(self, result: StepResult) -> None:
        self._put(Stepped(result.version))

    async def settled(self, state: RunState) -> None:
        self._put(Settled(state))

    def step(self, record: StepRecord) -> None:
        self._put(Done(record.version, self._covered()))
        self._say()

    async def flush(self) -> None:
        """Returns when what has happened so far is written, or cannot be."""
        if self._writer:
            await self._writer.flush()

    def close(self) -> None:
        if self._writer:
            self._writer.close()
            self._say()

    def _put(self, entry: Entry) -> None:
        self.begin()
        assert self._writer
        self._writer.put(entry)

    def _say(self) -> None:
        while self._writer and self._writer.notes:
            self._tell.note(self._writer.notes.popleft())


class _Flush:
    """Everything before it is written, or never will be."""

    def __init__(self) -> None:
        self._loop, self.done = asyncio.get_running_loop(), asyncio.Event()

    def set(self) -> None:
        self._loop.call_soon_threadsafe(self.done.set)


class BookWriter:
    """The thread. Consumes `put`, which returns at once; waits for the disk, and is unblocked by it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.notes: deque[str] = deque()
        self._queue: SimpleQueue[Entry | _Flush | None] = SimpleQueue()
        self._waiting: list[Entry] = []
        self._ends = self._given_up = self._said = False
        self._thread = threading.Thread(target=self._write, name="book", daemon=True)
        self._thread.start()

    def put(self, entry: Entry) -> None:
        if not self._given_up:
            self._queue.put(entry)

    async def flush(self) -> None:
        flush = _Flush()
        self._queue.put(flush)
        try:
            await asyncio.wait_for(flush.done.wait(), _FLUSH_S)
        except TimeoutError:
            self.notes.append(f"the book in run.db is behind: its disk takes more than {_FLUSH_S:.0f} s")

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join(_CLOSE_S)

    def _write(self) -> None:
        database: BookDatabase | None = None
        while not self._ends:
            flushes = self._take()
            try:
                database = database or self._opened()
                database.add(self._waiting)
                self._waiting.clear()
            except (sqlite3.Error, OSError) as error:
                self._refused(error)
            except Exception as error:  # whatever it is, the run must not end by it
                self._give_up(error)
            for flush in flushes:
                flush.set()
        if database:
            database.close()

    def _take(self) -> list[_Flush]:
        """Whatever there is; waits for the first, though not for long where something is to be tried again."""
        flushes: list[_Flush] = []
        try:
            entry = self._queue.get(timeout=_AGAIN_S if self._waiting else None)
            if entry is not None and not isinstance(entry, _Flush):
                time.sleep(_TOGETHER_S)
            while len(self._waiting) < _MOST_WAITING:
                if entry is None:
                    self._ends = True
                    break
                if isinstance(entry, _Flush):
                    flushes.append(entry)
                elif not self._given_up:
                    self._waiting.append(entry)
                if len(self._waiting) % _TOGETHER == _TOGETHER - 1:
                    break
                entry = self._queue.get_nowait()
        except Empty:
            pass
        return flushes

    def _opened(self) -> BookDatabase:
        try:
            return BookDatabase(self._path, MOST_TRAINED_BYTES)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as error:
            aside = put_aside(self._path)
            self.notes.append(f"run.db was damaged ({error}): it is kept aside as {aside.name}, and a new one begins")
            return BookDatabase(self._path, MOST_TRAINED_BYTES)

    def _refused(self, error: Exception) -> None:
        if len(self._waiting) >= _MOST_WAITING:
            self._give_up(error)
            return
        if not self._said:
            self.notes.append(
                f"the book in run.db cannot be written ({_in_a_line(error)}): it is tried again; make room on its disk"
            )
            self._said = True
        if not self._ends:
            time.sleep(_AGAIN_S / 4)

    def _give_up(self, error: Exception) -> None:
        self._given_up = True
        self._waiting.clear()
        self.notes.append(
            f"the book in run.db cannot be written ({_in_a_line(error)}), and ends here: a run that is killed goes on "
            "from its newest checkpoint"
        )


def _in_a_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
