"""Finds samples in a run's run.db, while the run goes on or after it: by text, reward, task and more, newest first.

Only reads, in any process, and from several threads at once. A missing, empty or damaged file, or one that cannot be
read just now, is a DataError of one line. Text is found as in an editor: any string, inside of words too, upper and
lower case alike.

Every page is bounded in time: where a filter and a text are each common and hardly ever come together, it holds what
was found until then, and says where to go on.
"""

import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from freerun.core import DataError, Version
from freerun.observe.database import SCHEMA, indexed
from freerun.observe.records import SampleRecord, TurnRecord
from freerun.observe.sample_values import floats, ratios, tokens_of

COUNTED = 10_000
"""So many samples with a text are counted, at most."""
COUNT_S = 0.06
PAGE_S = 0.25
"""How long counting goes on when the page is complete, and how long one looks for a page."""
HISTORY = 2_000
"""Samples of a task's history, at most."""
EXCERPT, EXCERPT_BEFORE = 240, 60
"""Characters of a row's excerpt, and how many of them stand before the text that was looked for."""
_CHUNK = 500
_FEW = 5_000
"""So many samples that pass a filter are looked through for a text; of more, those that have the text are found by the
index of texts first."""
_SCANNED = 5_000
"""So many of the newest samples are looked through for one or two characters before the index is asked."""
_MOST_TERMS, _MOST_THREES = 200, 32
"""So many threes may begin with one or two characters, and so many of a long text are asked for."""
_BUSY_MS = 2_000
_ROW = (
    *("id", "step", "version", "grp", "task", "member", "branch", "branches", "reward", "fate", "finish", "truncated"),
    *("length", "turns", "staleness_max", "staleness_mean"),
)


@dataclass(frozen=True)
class SampleFilter:
    """Which samples: those for which everything holds that is said."""

    text: str = ""
    """What they hold, in any case; of a conversation, anywhere in it."""
    reward_min: float | None = None
    reward_max: float | None = None
    truncated: bool | None = None
    staleness_min: int | None = None
    """The staleness of the oldest token, at least."""
    task: str | None = None
    """The task's id."""
    prompt: str = ""
    """What the task's prompt holds, in any case."""
    branch: bool = False
    """Only samples of members that have several."""
    fate: str | None = None
    """`trained`, or why its group was dropped."""
    step_min: int | None = None
    step_max: int | None = None
    finish: str | None = None

    def sql(self) -> tuple[list[str], list[Any]]:
        """Conditions on the row, and their values. The text is none of them."""
        wanted = {
            "reward >= ?": self.reward_min,
            "reward <= ?": self.reward_max,
            "truncated = ?": None if self.truncated is None else int(self.truncated),
            "staleness_max >= ?": self.staleness_min,
            "task = ?": self.task,
            "task IN (SELECT task FROM tasks WHERE instr(lower(prompt), ?))": self.prompt.lower() or None,
            "branches > ?": 1 if self.branch else None,
            "fate = ?": self.fate,
            "step >= ?": self.step_min,
            "step <= ?": self.step_max,
            "finish = ?": self.finish,
        }
        given = {condition: value for condition, value in wanted.items() if value is not None}
        return list(given), list(given.values())


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


@dataclass
class _Found:
    """What a search has come to."""

    ids: list[int]
    looked_to: int = 0
    """The last id that was looked at; 0 when all were."""
    exact: bool = True


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
                sql = f"SELECT count(*) FROM samples INDEXED BY samples_filter{_where(conditions)}"
                (total,) = db.execute(sql, values).fetchone()
                if total == 0:
                    return SamplePage([], 0, False)
            ids = [id for (id,) in db.execute(*_newest(conditions, values, before_id, limit + 1))]
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
            ids = [id for (id,) in db.execute(*_newest(["task = ?"], [task], None, HISTORY))]
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
        found = _search(db, filter, before_id, COUNTED if counts else limit + 1, limit + 1)
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
        used = {token for row in whole for token in tokens_of(row["tokens"])}
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


def _where(conditions: list[str]) -> str:
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def _newest(conditions: list[str], values: list[Any], before_id: int | None, limit: int) -> tuple[str, list[Any]]:
    """The statement for the newest ids that pass, and its values."""
    if before_id is not None:
        conditions, values = [*conditions, "id < ?"], [*values, before_id]
    sql = f"SELECT id FROM samples INDEXED BY samples_filter{_where(conditions)} ORDER BY id DESC LIMIT ?"
    return sql, [*values, limit]


def _search(db: sqlite3.Connection, filter: SampleFilter, before_id: int | None, most: int, page: int) -> _Found:
    """The newest that pass and have the text: `most` of them, or those that were found in the time there is. `page` of
    them are worth more of it."""
    needle, began_s = _folded(filter.text), time.monotonic()
    found = _Found([])
    for ids in _candidates(db, filter, before_id):
        found.ids += _with_text(db, filter, ids, needle)
        spent_s = time.monotonic() - began_s
        if len(found.ids) >= most or spent_s > (COUNT_S if len(found.ids) >= page else PAGE_S):
            found.looked_to, found.exact = ids[-1], False
            break
    return found


def _candidates(db: sqlite3.Connection, filter: SampleFilter, before_id: int | None) -> Iterator[list[int]]:
    """Ids among which are all that pass and have the text, newest first."""
    conditions, values = filter.sql()
    if conditions:
        few = [id for (id,) in db.execute(*_newest(conditions, values, before_id, _FEW))]
        if len(few) < _FEW:
            yield from (few[at : at + _CHUNK] for at in range(0, len(few), _CHUNK))
            return
    needle, last = _folded(filter.text), before_id
    if len(needle) >= 3:
        threes = [needle[at : at + 3] for at in range(len(needle) - 2)]
        yield from _by_index(db, threes[:: -(-len(threes) // _MOST_THREES)], " AND ", last)
        return
    for ids in islice(_passing(db, filter, last), _SCANNED // _CHUNK):
        yield ids
        last = ids[-1]
    asked = (needle, needle + chr(0x10FFFF), _MOST_TERMS)
    begun = [term for (term,) in db.execute("SELECT term FROM temp.terms WHERE term >= ? AND term < ? LIMIT ?", asked)]
    yield from _by_index(db, begun, " OR ", last) if len(begun) < _MOST_TERMS else _passing(db, filter, last)


def _passing(db: sqlite3.Connection, filter: SampleFilter, before_id: int | None) -> Iterator[list[int]]:
    while ids := [id for (id,) in db.execute(*_newest(*filter.sql(), before_id, _CHUNK))]:
        yield ids
        before_id = ids[-1]


def _by_index(db: sqlite3.Connection, threes: list[str], joined: str, before_id: int | None) -> Iterator[list[int]]:
    """Those in which all, or any, of these threes are."""
    if not threes:
        return
    quoted = dict.fromkeys('"' + three.replace('"', '""') + '"' for three in threes)
    last = (1 << 62) if before_id is None else before_id
    match = db.execute(
        "SELECT rowid FROM search WHERE search MATCH ? AND rowid < ? ORDER BY rowid DESC", (joined.join(quoted), last)
    )
    while ids := [id for (id,) in match.fetchmany(_CHUNK)]:
        yield ids


def _with_text(db: sqlite3.Connection, filter: SampleFilter, ids: list[int], needle: str) -> list[int]:
    """Those of the ids that pass and have the text, in their order."""
    conditions, values = filter.sql()
    among = ["id IN (SELECT value FROM json_each(?))", *conditions]
    sql = f"SELECT id, text, conversation FROM samples{_where(among)} ORDER BY id DESC"
    rows = db.execute(sql, [json.dumps(ids), *values])
    return [id for id, text, conversation in rows if needle in _folded(indexed(text, conversation))]


def _folded(text: str) -> str:
    return text.replace("\0", " ").lower()


def _row(values: list[Any], text: str, conversation: bytes | None, needle: str, prompt: str) -> SampleRow:
    if needle:
        text = indexed(text, conversation).rstrip("\n")
    at = _folded(text).find(_folded(needle)) if needle else -1
    start = max(at - EXCERPT_BEFORE, 0) if at >= 0 else 0
    match = (at - start, min(at - start + len(needle), EXCERPT)) if at >= 0 else None
    return SampleRow(*values[:11], bool(values[11]), *values[12:], text[start : start + EXCERPT], match, prompt)


def _record(row: dict[str, Any], words: dict[int, str]) -> SampleRecord:
    logprobs, before = floats(row["logprobs"]), floats(row["before"]) if row["before"] is not None else None
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
        tokens=[words.get(token, "\ufffd") for token in tokens_of(row["tokens"])],
        logprobs=logprobs,
        versions=[version for version, count in json.loads(row["versions"]) for _ in range(count)],
        member=row["member"],
        branch=row["branch"],
        branches=row["branches"],
        turns=msgspec.json.decode(row["conversation"], type=list[TurnRecord]) if row["conversation"] else [],
        before=before,
        ratios=None if before is None else ratios(logprobs, before),
    )
