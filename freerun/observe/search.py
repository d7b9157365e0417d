"""Which samples of run.db a filter means: by text, reward, task and more, newest first. `sample_reader.py` shows them.

Text is found as in an editor: any string, inside of words too, upper and lower case alike. A search is bounded in time:
where a filter and a text are each common and hardly ever come together, it ends with what was found until then, and
says where to go on.
"""

import json
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from freerun.observe.database import search_text
from freerun.observe.folder import whole

COUNTED = 10_000
"""So many samples with a text are counted, at most."""
COUNT_S = 0.06
PAGE_S = 0.25
"""How long counting goes on when the page is complete, and how long one looks for a page."""
_CHUNK = 500
_FEW = 5_000
"""So many samples that pass a filter are looked through for a text; of more, those that have the text are found by the
index of texts first."""
_SCANNED = 5_000
"""So many of the newest samples are looked through for one or two characters before the index is asked."""
_MOST_TERMS, _MOST_THREES = 200, 32
"""So many threes may begin with one or two characters, and so many of a long text are asked for."""


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
        return list(given), [whole(value) if isinstance(value, str) else value for value in given.values()]


@dataclass
class Found:
    """What a search has come to."""

    ids: list[int]
    looked_to: int = 0
    """The last id that was looked at; 0 when all were."""
    exact: bool = True


def where(conditions: list[str]) -> str:
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def newest(conditions: list[str], values: list[Any], before_id: int | None, limit: int) -> tuple[str, list[Any]]:
    """The statement for the newest ids that pass, and its values."""
    if before_id is not None:
        conditions, values = [*conditions, "id < ?"], [*values, before_id]
    sql = f"SELECT id FROM samples INDEXED BY samples_filter{where(conditions)} ORDER BY id DESC LIMIT ?"
    return sql, [*values, limit]


def find_text(db: sqlite3.Connection, filter: SampleFilter, before_id: int | None, most: int, page: int) -> Found:
    """The newest that pass and have the text: `most` of them, or those that were found in the time there is. `page` of
    them are worth more of it."""
    needle, began_s = folded(filter.text), time.monotonic()
    found = Found([])
    looked_to = 0
    for ids in _candidates(db, filter, before_id):
        spent_s = time.monotonic() - began_s
        if looked_to and (len(found.ids) >= most or spent_s > (COUNT_S if len(found.ids) >= page else PAGE_S)):
            found.looked_to, found.exact = looked_to, False
            break
        found.ids += _with_text(db, filter, ids, needle)
        looked_to = ids[-1]
    return found


def _candidates(db: sqlite3.Connection, filter: SampleFilter, before_id: int | None) -> Iterator[list[int]]:
    """Ids among which are all that pass and have the text, newest first."""
    conditions, values = filter.sql()
    if conditions:
        few = [id for (id,) in db.execute(*newest(conditions, values, before_id, _FEW))]
        if len(few) < _FEW:
            yield from (few[at : at + _CHUNK] for at in range(0, len(few), _CHUNK))
            return
    needle, last = folded(filter.text), before_id
    if len(filter.text) >= 3:
        text = whole(filter.text).replace("\0", " ")  # the index folds it in its own way
        threes = [text[at : at + 3] for at in range(len(text) - 2)]
        yield from _by_index(db, threes[:: -(-len(threes) // _MOST_THREES)], " AND ", last)
        return
    for ids in islice(_passing(db, filter, last), _SCANNED // _CHUNK):
        yield ids
        last = ids[-1]
    asked = (needle, needle + chr(0x10FFFF), _MOST_TERMS)
    begun = [term for (term,) in db.execute("SELECT term FROM temp.terms WHERE term >= ? AND term < ? LIMIT ?", asked)]
    yield from _by_index(db, begun, " OR ", last) if len(begun) < _MOST_TERMS else _passing(db, filter, last)


def _passing(db: sqlite3.Connection, filter: SampleFilter, before_id: int | None) -> Iterator[list[int]]:
    while ids := [id for (id,) in db.execute(*newest(*filter.sql(), before_id, _CHUNK))]:
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
    sql = f"SELECT id, text, conversation FROM samples{where(among)} ORDER BY id DESC"
    rows = db.execute(sql, [json.dumps(ids), *values])
    return [id for id, text, conversation in rows if needle in folded(search_text(text, conversation))]


def folded(text: str) -> str:
    return whole(text).replace("\0", " ").lower()
