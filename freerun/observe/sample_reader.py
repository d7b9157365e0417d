"""Reads a run's samples from run.db, while the run goes on or after it, for a page, a report or a script.

Only reads, in any process, and from several threads at once. A missing, empty or damaged file, or one that cannot be
read just now, is a DataError of one line. Which samples a filter means is the business of `search.py`.
"""

import json
import math
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from freerun.core import DataError, Version
from freerun.observe.database import SCHEMA, search_text
from freerun.observe.records import SampleRecord, TurnRecord
from freerun.observe.search import COUNTED, SampleFilter, find_text, folded, newest, where

EXCERPT, EXCERPT_BEFORE = 240, 60
"""Characters of a row's excerpt, and how many of them stand before the text that was looked for."""
HISTORY = 2_000
"""Samples of a task's history, at most."""
_BUSY_MS = 2_000
_ROW = (
    *("id", "step", "version", "grp", "task", "member", "branch", "branches", "reward", "fate", "finish", "truncated"),
    *("length", "turns", "staleness_max", "staleness_mean"),
)


@dataclass(frozen=True)
class SampleRow:
    """A sample in a list: all but its tokens."""

    id: int
    step: int
    version: Version
    group: int
    task: str
    member: int
    branch: int
    branches: int
    reward: float | None
    fate: str
    finish: str
    truncated: bool
    length: int
    """Sampled tokens."""
    turns: int
    staleness_max: int
    staleness_mean: float
    excerpt: str
    """Its text around what was looked for, or the beginning of it."""
    match: tuple[int, int] | None = None
    """Where in the excerpt that is (end excluded)."""
    prompt: str = ""
    """The end of it: what is asked most often stands there."""


@dataclass(frozen=True)
class SamplePage:
    rows: list[SampleRow]
    """Newest first."""
    total: int | None
    """How many pass the filter, with the first page only."""
    more: bool
    """Whether there may be others after these."""
    next_before: int | None = None
    """What to ask for them with, as `before_id`. It is not the last row's id where a search was cut short."""
    total_is_exact: bool = True
    """Otherwise there are at least so many."""


class SampleReader:
    """Samples of one run. It need not be closed before the run goes on, ends, or is deleted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None
        self._inode = 0

    def page(self, filter: SampleFilter, before_id: int | None = None, limit: int = 50) -> SamplePage:
        with self._reading() as db:
            if filter.text:
                return self._page_by_text(db, filter, before_id, limit)
            conditions, values = filter.sql()
            total = None
            if before_id is None:
                sql = f"SELECT count(*) FROM samples INDEXED BY samples_filter{where(conditions)}"
                (total,) = db.execute(sql, values).fetchone()
                if total == 0:
                    return SamplePage([], 0, False)
            ids = [id for (id,) in db.execute(*newest(conditions, values, before_id, limit + 1))]
            more = len(ids) > limit
            rows = self._rows(db, ids[:limit], "")
            return SamplePage(rows, total, more, ids[limit - 1] if more else None)

    def one(self, id: int) -> SampleRecord:
        """All of a sample. DataError if there is none."""
        with self._reading() as db:
            found = self._records(db, [id])
        if not found:
            raise DataError(f"{self._path} has no sample {id}")
        return found[0]

    def many(self, ids: list[int]) -> list[SampleRecord]:
        """Those of them that there are, in their order."""
        with self._reading() as db:
            return self._records(db, ids)

    def task_history(self, task: str) -> list[SampleRow]:
        """The samples of a task, oldest first; of very many the newest."""
        with self._reading() as db:
            ids = [id for (id,) in db.execute(*newest(["task = ?"], [task], None, HISTORY))]
            return self._rows(db, ids[::-1], "")

    def count(self) -> int:
        with self._reading() as db:
            (count,) = db.execute("SELECT count(*) FROM samples INDEXED BY samples_filter").fetchone()
            return int(count)

    def close(self) -> None:
        with self._lock:
            self._forget()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._connection()
            except sqlite3.Error as error:
                self._forget()
                raise DataError(f"{self._path} cannot be read as a run's samples: {_in_words(error)}") from None
            except OverflowError:
                raise DataError("a number that samples are looked for by is too large: give a smaller one") from None

    def _connection(self) -> sqlite3.Connection:
        """A file that took the place of the one that was open is opened instead."""
        try:
            inode = self._path.stat().st_ino
        except OSError:
            self._forget()
            raise DataError(f"{self._path} is missing: this run keeps no samples, or has none yet") from None
        if self._db is None or inode != self._inode:
            self._forget()
            self._db, self._inode = _opened(self._path), inode
        return self._db

    def _forget(self) -> None:
        if self._db is not None:
            self._db.close()
        self._db = None

    def _page_by_text(
        self, db: sqlite3.Connection, filter: SampleFilter, before_id: int | None, limit: int
    ) -> SamplePage:
        counts = before_id is None
        found = find_text(db, filter, before_id, COUNTED if counts else limit + 1, limit + 1)
        more = len(found.ids) > limit or found.looked_to > 0
        goes_on = (found.ids[limit - 1] if len(found.ids) > limit else found.looked_to) if more else None
        rows = self._rows(db, found.ids[:limit], filter.text)
        return SamplePage(rows, len(found.ids) if counts else None, more, goes_on, found.exact)

    def _rows(self, db: sqlite3.Connection, ids: list[int], text: str) -> list[SampleRow]:
        columns = f"{', '.join(_ROW)}, text, conversation, substr(prompt, -{EXCERPT})"
        sql = f"SELECT {columns} FROM samples LEFT JOIN tasks USING (task) WHERE id = ?"
        rows = []
        for id in ids:
            if found := db.execute(sql, (id,)).fetchone():
                *values, said, conversation, prompt = found
                rows.append(_row(values, said or "", conversation, text, prompt or ""))
        return rows

    def _records(self, db: sqlite3.Connection, ids: list[int]) -> list[SampleRecord]:
        names = (*_ROW, "text", "tokens", "logprobs", "versions", "before", "conversation", "prompt", "answer")
        sql = f"SELECT {', '.join(names)} FROM samples LEFT JOIN tasks USING (task) WHERE id = ?"
        found = [db.execute(sql, (id,)).fetchone() for id in ids]
        whole = [dict(zip(names, values, strict=True)) for values in found if values]
        used = {token for row in whole for token in _tokens(row["tokens"])}
        asked = (json.dumps(sorted(used)),)
        words = dict(db.execute("SELECT token, text FROM words WHERE token IN (SELECT value FROM json_each(?))", asked))
        return [_record(row, words) for row in whole]


def _opened(path: Path) -> sqlite3.Connection:
    """Read-only. What is written never goes through here, so a folder that one may only read is enough."""
    where = path.absolute().as_uri()
    try:
        return _checked(f"{where}?mode=ro")
    except sqlite3.OperationalError:
        if path.with_name(path.name + "-wal").exists():
            raise
        return _checked(f"{where}?immutable=1")  # a folder in which nothing can be made


def _checked(where: str) -> sqlite3.Connection:
    db = sqlite3.connect(where, uri=True, check_same_thread=False, isolation_level=None)
    try:
        db.execute(f"PRAGMA busy_timeout={_BUSY_MS}")
        db.execute("PRAGMA cache_size=-64000")
        (schema,) = db.execute("PRAGMA user_version").fetchone()
        if schema != SCHEMA:
            raise sqlite3.DatabaseError("it is empty" if schema == 0 else f"another Freerun wrote it (schema {schema})")
        db.execute("CREATE VIRTUAL TABLE temp.terms USING fts5vocab(main, search, row)")
    except BaseException:
        db.close()
        raise
    return db


def _in_words(error: sqlite3.Error) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _row(values: list[Any], text: str, conversation: bytes | None, needle: str, prompt: str) -> SampleRow:
    if needle:
        text = search_text(text, conversation)
    at = folded(text).find(folded(needle)) if needle else -1
    start = max(at - EXCERPT_BEFORE, 0) if at >= 0 else 0
    match = (at - start, min(at - start + len(needle), EXCERPT)) if at >= 0 else None
    known = dict(zip(_ROW, values, strict=True))
    known |= {"group": known.pop("grp"), "truncated": bool(known["truncated"])}
    return SampleRow(**known, excerpt=text[start : start + EXCERPT], match=match, prompt=prompt)


def _record(row: dict[str, Any], words: dict[int, str]) -> SampleRecord:
    logprobs, before = _floats(row["logprobs"]), _floats(row["before"]) if row["before"] is not None else None
    return SampleRecord(
        id=row["id"],
        step=row["step"],
        version=row["version"],
        group=row["grp"],
        task=row["task"],
        prompt=row["prompt"] or "",
        answer=row["answer"],
        text=row["text"],
        reward=row["reward"],
        fate=row["fate"],
        finish=row["finish"],
        tokens=[words.get(token, "\ufffd") for token in _tokens(row["tokens"])],
        logprobs=logprobs,
        versions=[version for version, count in json.loads(row["versions"]) for _ in range(count)],
        member=row["member"],
        branch=row["branch"],
        branches=row["branches"],
        turns=msgspec.json.decode(row["conversation"], type=list[TurnRecord]) if row["conversation"] else [],
        before=before,
        ratios=None if before is None else _ratios(logprobs, before),
    )


def _tokens(held: bytes) -> list[int]:
    tokens: list[int] = np.frombuffer(held, np.int32).tolist()
    return tokens


def _floats(held: bytes) -> list[float | None]:
    """None for what is no number."""
    return [value if math.isfinite(value) else None for value in np.frombuffer(held, np.float32).tolist()]


def _ratios(behavior: list[float | None], before: list[float | None]) -> list[float | None]:
    """How much likelier each token is by the trainer's weights before the step than it was when it was sampled. None
    where one of the two is not known."""
    return [
        None if sampled is None or trained is None else math.exp(min(trained - sampled, 700.0))
        for sampled, trained in zip(behavior, before, strict=False)
    ]
