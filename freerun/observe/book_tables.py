"""run.db's book: every event of the book of groups in the order in which they happened, and what a run that was killed
needs to go on without sampling anything twice. `book.py` fills it, `book_reader.py` reads it.

    book_begins   a row for each time that the run began or went on
    book_events   a row for each event, `id` counting up
    book_steps    for each step that is done: the run's state after it, and the last event before that state
    book_groups   judged groups with their tokens: those that wait, and those of the steps that no checkpoint covers yet

Promises: what is there is a beginning of what happened, however the run was killed: entries are added in their order,
each transaction whole. Beside it in the same file are the samples, by a connection of their own (`database.py`).
"""

import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from freerun.core import Group, Version
from freerun.core.groups import GroupEvent, Position
from freerun.core.packed import packed
from freerun.core.state import RunState
from freerun.observe.database import PAGE_BYTES, Transaction
from freerun.observe.folder import encode

_TABLES = """
CREATE TABLE IF NOT EXISTS book_begins(
  id INTEGER PRIMARY KEY, at REAL, version INTEGER, after INTEGER, tasks INTEGER, undone INTEGER);
CREATE TABLE IF NOT EXISTS book_events(
  id INTEGER PRIMARY KEY, stage TEXT, grp INTEGER, epoch INTEGER, place INTEGER, task TEXT, version INTEGER,
  reason TEXT, rewards TEXT, judgements TEXT);
CREATE TABLE IF NOT EXISTS book_steps(version INTEGER PRIMARY KEY, event INTEGER, state TEXT);
CREATE TABLE IF NOT EXISTS book_groups(
  grp INTEGER PRIMARY KEY, epoch INTEGER, place INTEGER, task TEXT, admitted INTEGER, trained INTEGER,
  num_bytes INTEGER, header BLOB, buffer BLOB, texts BLOB);
CREATE INDEX IF NOT EXISTS book_groups_trained ON book_groups(trained);
CREATE INDEX IF NOT EXISTS book_events_trained ON book_events(version) WHERE stage = 'trained';
"""
_EVENT = "INSERT INTO book_events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_GROUP = "INSERT OR REPLACE INTO book_groups VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_BUSY_S = 10.0
RESTED = "rested"
"""The stage of a task that was solved and sat out a pass: it was never dealt."""


@dataclass(frozen=True, slots=True)
class Begun:
    """The run begins at that version, or goes on there. What happened after the event `after` is undone, and so is what
    that step and later ones were trained on; but the groups in `kept` are ready still."""

    version: Version
    after: int
    tasks: int
    """In a pass over the data."""
    kept: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Happened:
    event: GroupEvent


@dataclass(frozen=True, slots=True)
class Rested:
    """A task sat out its pass."""

    position: Position
    task: str


@dataclass(frozen=True, slots=True)
class Ready:
    """A group waits for the trainer: its tokens are kept."""

    position: Position
    group: Group


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step is over: what happens from here on is not in its state."""

    version: Version


@dataclass(frozen=True, slots=True)
class Settled:
    """The run's state as it was at `Stepped`. It counts when the step is `Done`, too."""

    state: RunState


@dataclass(frozen=True, slots=True)
class Done:
    """The engines have that version, and its line is in metrics.jsonl. What a checkpoint covers, with the steps before
    `covered`, need not be done again."""

    version: Version
    covered: Version


Entry = Begun | Happened | Rested | Ready | Stepped | Settled | Done


class BookDatabase:
    """The one writer of these tables. All of it belongs to one thread. Raises sqlite3.Error, as the disk has it."""

    def __init__(self, path: Path, most_bytes: int) -> None:
        """No more than `most_bytes` are kept of groups that are trained already."""
        self._most_bytes = most_bytes
        self._db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
        try:
            self._db.execute(f"PRAGMA page_size={PAGE_BYTES}")
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(_TABLES)
            self._next = _first(self._db, "SELECT max(id) FROM book_events") + 1
            self._trained_bytes = _first(self._db, "SELECT sum(num_bytes) FROM book_groups WHERE trained IS NOT NULL")
        except BaseException:
            self._db.close()
            raise
        self._stepped = (-1, 0)
        """The version of the last step that was over, and the last event before that."""
        self._settled: RunState | None = None
        self._done = -1

    def add(self, entries: Sequence[Entry]) -> None:
        """All of them, or none."""
        before = self._next, self._stepped, self._settled, self._done, self._trained_bytes
        try:
            with Transaction(self._db):
                for entry in entries:
                    self._add(entry)
        except BaseException:
            self._next, self._stepped, self._settled, self._done, self._trained_bytes = before
            raise

    def close(self) -> None:
        """What is in the file beside it goes into run.db, unless somebody is reading it."""
        with suppress(sqlite3.Error):
            self._db.execute("PRAGMA busy_timeout=0")
            self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        self._db.close()

    def _add(self, entry: Entry) -> None:
        match entry:
            case Happened(event):
                self._happened(event)
            case Ready(position, group):
                self._keep(position, group)
            case Stepped(version):
                self._stepped = version, self._next - 1
            case Settled(state):
                self._settled = state
                self._conclude()
            case Done(version, covered):
                self._done = version
                self._conclude()
                self._forget_before(covered)
            case Rested(position, task):
                self._row(RESTED, None, position, task, None)
            case Begun():
                self._begin(entry)

    def _happened(self, event: GroupEvent) -> None:
        told = event.judgements or event.stage.is_end
        self._row(
            *(event.stage.value, event.group, event.position, event.task, event.version),
            event.reason.value if event.reason else None,
            encode(event.rewards).decode() if told and event.rewards else None,
            encode(event.judgements).decode() if event.judgements else None,
        )
        if event.reason:
            self._db.execute("DELETE FROM book_groups WHERE grp = ?", (event.group,))
        elif event.stage.is_end:
            self._trained(event)

    def _trained(self, event: GroupEvent) -> None:
        """Its tokens are needed until a checkpoint covers the step. Where they would take too much room, they go: those
        steps cannot be done again then."""
        (size,) = self._db.execute("SELECT num_bytes FROM book_groups WHERE grp = ?", (event.group,)).fetchone() or (0,)
        if self._trained_bytes + size > self._most_bytes:
            self._db.execute("DELETE FROM book_groups WHERE grp = ?", (event.group,))
        else:
            self._db.execute("UPDATE book_groups SET trained = ? WHERE grp = ?", (event.version, event.group))
            self._trained_bytes += size

    def _row(
        self, stage: str, group: int | None, position: Position, task: str, version: int | None, *more: object
    ) -> None:
        row = (self._next, stage, group, position.epoch, position.index, task, version)
        self._db.execute(_EVENT, (*row, *more, *(None,) * (3 - len(more))))
        self._next += 1

    def _keep(self, position: Position, group: Group) -> None:
        header, buffer = packed(group.samples)
        texts = encode([(sample.text, sample.turns) for sample in group.samples])
        size = len(header) + len(buffer) + len(texts)
        about = (group.id, position.epoch, position.index, group.task.id, group.admitted_at, None, size)
        self._db.execute(_GROUP, (*about, header, buffer, texts))

    def _conclude(self) -> None:
        """Whichever of the step's two ends comes last."""
        version, event = self._stepped
        if self._settled and self._settled.version == self._done == version:
            row = (version, event, msgspec.json.encode(self._settled).decode())
            self._db.execute("INSERT OR REPLACE INTO book_steps VALUES (?, ?, ?)", row)

    def _forget_before(self, covered: Version) -> None:
        """The run never goes on from an earlier version: what was only needed for that goes. How each group ended
        stays."""
        gone = self._db.execute("SELECT event FROM book_steps WHERE version < ? AND version > 0", (covered,)).fetchall()
        if not gone:
            return
        self._db.execute(
            "DELETE FROM book_events WHERE id <= ? AND stage NOT IN ('trained', 'dropped', 'rested')", max(gone)
        )
        self._db.execute("DELETE FROM book_steps WHERE version < ?", (covered,))
        self._db.execute("DELETE FROM book_groups WHERE trained < ?", (covered,))
        self._trained_bytes = _first(self._db, "SELECT sum(num_bytes) FROM book_groups WHERE trained IS NOT NULL")

    def _begin(self, begun: Begun) -> None:
        gone = "FROM book_events WHERE id > ? OR stage = 'trained' AND version >= ?"
        undone = _first(self._db, f"SELECT count(*) {gone}", begun.after, begun.version)
        self._db.execute(f"DELETE {gone}", (begun.after, begun.version))
        self._db.execute("DELETE FROM book_steps WHERE version > ?", (begun.version,))
        self._db.execute("UPDATE book_groups SET trained = NULL WHERE trained >= ?", (begun.version,))
        waiting = {grp for (grp,) in self._db.execute("SELECT grp FROM book_groups WHERE trained IS NULL")}
        self._db.executemany("DELETE FROM book_groups WHERE grp = ?", [(grp,) for grp in waiting - begun.kept])
        row = (time.time(), begun.version, begun.after, begun.tasks, undone)
        self._db.execute("INSERT INTO book_begins VALUES (NULL, ?, ?, ?, ?, ?)", row)
        self._next = _first(self._db, "SELECT max(id) FROM book_events") + 1


def _first(db: sqlite3.Connection, query: str, *values: object) -> int:
    (found,) = db.execute(query, values).fetchone()
    return int(found or 0)
