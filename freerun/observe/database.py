"""run.db: every sample of a run in SQLite, with an index by which text is found. `sample_reader.py` reads it.

Promises: a step's samples are there together or not at all, whoever is killed when; a run that goes on appends; readers
in other processes never wait for the writer, nor it for them (WAL). Knows rows, and nothing of who waits for them.

    samples   a row for each sample, `id` counting up: steps never go down with it
    tasks     prompt and reference answer of each task that has samples
    words     each token's text
    search    for every three characters in a row, which samples have them (FTS5, trigram)

`search` holds no text and no places: who looks for a string asks for the samples that have all its threes, and looks
whether they have the string. `samples_filter` has the columns that one filters by beside each other, so that a filter
over a million samples reads some 40 MB, not all of their text and tokens.
`docs/decisions/2026-11-18-every-sample.md` has the measurements.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from freerun.core import Group
from freerun.observe.folder import whole
from freerun.observe.records import TurnRecord
from freerun.observe.sample_rows import COLUMNS, Row, searched

SCHEMA = 1
"""The version of the tables below; a file's own is its `user_version`."""
_TABLES = """
CREATE TABLE samples(
  id INTEGER PRIMARY KEY, step INTEGER, version INTEGER, grp INTEGER, task TEXT, member INTEGER, branch INTEGER,
  branches INTEGER, reward REAL, fate TEXT, finish TEXT, truncated INTEGER, length INTEGER, turns INTEGER,
  staleness_max INTEGER, staleness_mean REAL, text TEXT, tokens BLOB, logprobs BLOB, versions TEXT, before BLOB,
  conversation BLOB);
CREATE INDEX samples_filter ON samples(id, step, truncated, reward, staleness_max, fate, finish, branches, task);
CREATE TABLE tasks(task TEXT PRIMARY KEY, prompt TEXT, answer TEXT);
CREATE TABLE words(token INTEGER PRIMARY KEY, text TEXT);
CREATE VIRTUAL TABLE search USING fts5(text, content='', tokenize='trigram', detail=none, columnsize=0);
"""
_BUSY_S = 10.0
PAGE_BYTES = 8192
"""A sample of a hundred tokens takes some 2 KB: with pages of 4 KB, an eighth more of the disk would hold nothing."""
_INSERT = f"INSERT INTO samples(id, {', '.join(COLUMNS)}) VALUES (?, {', '.join('?' * len(COLUMNS))})"
_TEXT, _TOKENS, _CONVERSATION = (COLUMNS.index(name) for name in ("text", "tokens", "conversation"))
_END = "\n\n"
"""After each text in `search`, such that its last one and two characters begin a three, too."""


class Decoder(Protocol):
    def decode(self, token_ids: Any, /) -> str: ...


class SampleDatabase:
    """The one writer. All of it belongs to one thread. Raises sqlite3.Error and OSError, as the disk has it."""

    def __init__(self, path: Path, tokenizer: Decoder) -> None:
        self._path, self._tokenizer = path, tokenizer
        self._db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
        try:
            self._open()
        except BaseException:
            self._db.close()
            raise

    def _open(self) -> None:
        self._db.execute(f"PRAGMA page_size={PAGE_BYTES}")
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute("PRAGMA secure_delete=OFF")
        self._db.execute("PRAGMA cache_size=-16000")
        (schema,) = self._db.execute("PRAGMA user_version").fetchone()
        if schema == 0:
            self._db.executescript(f"BEGIN; {_TABLES} PRAGMA user_version={SCHEMA}; COMMIT;")
        elif schema != SCHEMA:
            raise sqlite3.DatabaseError(f"it is of another version of Freerun (schema {schema})")
        (last,) = self._db.execute("SELECT max(id) FROM samples").fetchone()
        self._next = (last or 0) + 1
        self._tasks = {task for (task,) in self._db.execute("SELECT task FROM tasks")}
        self._words = np.zeros(0, np.bool_)
        """By token: whether its text is in the file."""
        self._know(np.array([token for (token,) in self._db.execute("SELECT token FROM words")], np.int64))

    @property
    def num_bytes(self) -> int:
        """On the disk."""
        return sum(file.stat().st_size for file in (self._path, _beside(self._path, "-wal")) if file.exists())

    def add(self, groups: Iterable[Group], rows: Sequence[Row]) -> None:
        """The samples of a step, and the groups that they belong to, in one transaction."""
        with Transaction(self._db):
            numbered = range(self._next, self._next + len(rows))
            self._db.executemany(_INSERT, ((id, *row) for id, row in zip(numbered, rows, strict=True)))
            self._db.executemany(
                "INSERT INTO search(rowid, text) VALUES (?, ?)",
                (
                    (id, search_text(row[_TEXT], row[_CONVERSATION]) + _END)
                    for id, row in zip(numbered, rows, strict=True)
                ),
            )
            tasks = {group.task.id: group.task for group in groups if group.task.id not in self._tasks}
            self._db.executemany(
                "INSERT OR REPLACE INTO tasks VALUES (?, ?, ?)",
                ((whole(t.id), whole(t.prompt), None if t.answer is None else whole(t.answer)) for t in tasks.values()),
            )
            new = self._unknown(rows)
            self._db.executemany(
                "INSERT OR REPLACE INTO words VALUES (?, ?)",
                ((token, whole(self._tokenizer.decode([token]))) for token in new.tolist()),
            )
        self._next += len(rows)
        self._tasks |= tasks.keys()
        self._know(new)

    def forget_after(self, step: int) -> None:
        """Remove the samples of later steps: those steps are done again."""
        later = self._db.execute("SELECT id, text, conversation FROM samples WHERE step > ?", (step,)).fetchall()
        if not later:
            return
        with Transaction(self._db):
            self._db.executemany(
                "INSERT INTO search(search, rowid, text) VALUES ('delete', ?, ?)",
                ((id, search_text(text, conversation) + _END) for id, text, conversation in later),
            )
            self._db.execute("DELETE FROM samples WHERE step > ?", (step,))
        (last,) = self._db.execute("SELECT max(id) FROM samples").fetchone()
        self._next = (last or 0) + 1

    def close(self) -> None:
        """Leave one file that can be copied and opened anywhere, unless somebody is reading it."""
        try:
            self._db.execute("PRAGMA busy_timeout=0")
            self._db.execute("PRAGMA journal_mode=DELETE")
        except sqlite3.OperationalError:  # it is being read
            pass
        finally:
            self._db.close()

    def _unknown(self, rows: Sequence[Row]) -> NDArray[np.int64]:
        """The tokens whose text is not in the file."""
        used = np.unique(np.frombuffer(b"".join(row[_TOKENS] for row in rows), np.int32)).astype(np.int64)
        known = self._words[used[used < len(self._words)]]
        return np.concatenate([used[: len(known)][~known], used[len(known) :]])

    def _know(self, tokens: NDArray[np.int64]) -> None:
        if len(tokens):
            longer = max(int(tokens.max()) + 1 - len(self._words), 0)
            self._words = np.concatenate([self._words, np.zeros(longer, np.bool_)])
            self._words[tokens] = True


def search_text(text: str, conversation: bytes | None) -> str:
    """What a search for text looks at. FTS5 would stop at a NUL."""
    turns = msgspec.json.decode(conversation, type=list[TurnRecord]) if conversation else []
    return searched(text, turns).replace("\0", " ")


def put_aside(path: Path) -> Path:
    """Give a damaged file another name, for the user to look at or delete."""
    aside = _beside(path, ".damaged")
    path.replace(aside)
    for part in ("-wal", "-shm"):
        _beside(path, part).unlink(missing_ok=True)
    return aside


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


class Transaction:
    """All that is done inside, or nothing."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._db.in_transaction:  # a full disk may have ended it
            self._db.execute("COMMIT" if kind is None else "ROLLBACK")
