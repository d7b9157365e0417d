"""Reads run.db's book, while the run goes on or after it. It only reads; a file without a book is an empty one.

What cannot be read is as if it were not there, and `why_not` says so: a run can always go on from its checkpoint alone.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from freerun.core import Batch, DataError, Group, Task, Version
from freerun.core.groups import DropReason, GroupEvent, Position, Stage
from freerun.core.packed import unpacked
from freerun.core.state import RunState
from freerun.core.turns import Turn
from freerun.observe.book_tables import RESTED

_BUSY_MS = 5_000


@dataclass(frozen=True)
class Settlement:
    """A step that is done: the run's state after it, and the last event before that state."""

    state: RunState
    event: int


@dataclass(frozen=True)
class Entry:
    """An event of a group, or a task that sat out its pass (then `event` is None)."""

    id: int
    position: Position
    task: str
    event: GroupEvent | None


@dataclass(frozen=True)
class Beginning:
    """One time that the run began or went on."""

    at: float
    version: Version
    tasks: int
    """In a pass over the data."""
    undone: int
    """Events that were undone by it."""


class BookReader:
    def __init__(self, path: Path) -> None:
        self._path = path

    def beginnings(self) -> list[Beginning]:
        rows = self._all("SELECT at, version, tasks, undone FROM book_begins ORDER BY id")
        return [Beginning(*row) for row in rows]

    def settlements(self, since: Version = 0) -> dict[Version, Settlement]:
        """By version; those from `since` on, as far as they are without a gap."""
        rows = self._all("SELECT version, event, state FROM book_steps WHERE version >= ? ORDER BY version", since)
        found: dict[Version, Settlement] = {}
        for version, event, state in rows:
            if found and version - 1 not in found:
                break
            found[version] = Settlement(RunState.from_json(state.encode()), event)
        return found

    def oldest_settled(self) -> Version:
        """The oldest step whose state is kept: a checkpoint covers those before. 0 without any."""
        rows = self._all("SELECT min(version) FROM book_steps")
        return int(rows[0][0] or 0) if rows else 0

    def last_event(self) -> int:
        return int(self._all("SELECT max(id) FROM book_events")[0][0] or 0) if self._has_book() else 0

    def entries(self, after: int = 0) -> Iterator[Entry]:
        """In the order in which they happened."""
        columns = "id, stage, grp, epoch, place, task, version, reason, rewards, judgements"
        for row in self._all(f"SELECT {columns} FROM book_events WHERE id > ? ORDER BY id", after):
            yield _entry(*row)

    def steps_kept(self, since: Version) -> dict[Version, int]:
        """By version: how many of the groups that its step learned from are kept."""
        rows = self._all("SELECT trained, count(*) FROM book_groups WHERE trained >= ? GROUP BY trained", since)
        return dict(rows)

    def trained_since(self, since: Version) -> dict[Version, int]:
        """By version: how many groups its step learned from."""
        rows = self._all(
            "SELECT version, count(*) FROM book_events WHERE stage = 'trained' AND version >= ? GROUP BY version", since
        )
        return dict(rows)

    def batch(self, version: Version) -> Batch | None:
        """What the step at that version learned from; None where not all of it is kept."""
        groups = [group for _, group in self._groups("trained = ?", version)]
        rows = self._all("SELECT count(*) FROM book_events WHERE stage = 'trained' AND version = ?", version)
        return Batch(version, groups) if groups and [(len(groups),)] == rows else None

    def ready(self, since: Version) -> list[tuple[Position, Group]]:
        """Groups that no step before `since` was trained on, oldest first. Their tasks have no more than their ids."""
        return self._groups("trained IS NULL OR trained >= ?", since)

    def _groups(self, where: str, *values: object) -> list[tuple[Position, Group]]:
        columns = "grp, epoch, place, task, admitted, header, buffer, texts"
        rows = self._all(f"SELECT {columns} FROM book_groups WHERE {where} ORDER BY grp", *values)
        return [(Position(row[1], row[2]), _group(*row)) for row in rows]

    def _has_book(self) -> bool:
        return bool(self._all("SELECT 1 FROM sqlite_master WHERE name = 'book_events'"))

    def _all(self, query: str, *values: object) -> list[Any]:
        if not self._path.is_file():
            return []
        try:
            with _connected(self._path) as db:
                return db.execute(query, values).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return []
            raise DataError(f"{self._path} cannot be read ({error})") from None
        except sqlite3.Error as error:
            raise DataError(f"{self._path} is damaged ({error})") from None


@contextmanager
def _connected(path: Path) -> Iterator[sqlite3.Connection]:
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        db.execute(f"PRAGMA busy_timeout={_BUSY_MS}")
        yield db
    finally:
        db.close()


def _entry(
    id: int,
    stage: str,
    group: int | None,
    epoch: int,
    place: int,
    task: str,
    version: int | None,
    reason: str | None,
    rewards: str | None,
    judgements: str | None,
) -> Entry:
    position = Position(epoch, place)
    if stage == RESTED:
        return Entry(id, position, task, None)
    assert group is not None
    assert version is not None
    event = GroupEvent(
        *(Stage(stage), group, task, position, version),
        rewards=tuple(value for value in json.loads(rewards) if value is not None) if rewards else (),
        judgements=tuple(json.loads(judgements)) if judgements else (),
        reason=DropReason(reason) if reason else None,
    )
    return Entry(id, position, task, event)


def _group(
    grp: int, epoch: int, place: int, task: str, admitted: Version, header: bytes, buffer: bytes, texts: bytes
) -> Group:
    samples = unpacked(header, buffer)
    for sample, (text, turns) in zip(
        samples, msgspec.json.decode(texts, type=list[tuple[str, list[Turn]]]), strict=True
    ):
        sample.text, sample.turns = text, tuple(turns)
    return Group(grp, Task(task, "", []), samples, admitted)
