"""report.html: the page of a run as one file that needs nothing beside it, neither network nor server.

It is the live page with its data inside, reduced to a size that a browser likes: curves averaged to `POINTS`, the
timeline as a screen shows it and a part in detail, some of the samples. Works on any run folder, also of a run that
goes on or was killed. Text of samples only ever reaches the page as data and as text nodes, never as markup.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from freerun.core import DataError, FreerunError
from freerun.core.files import write_atomically
from freerun.core.metrics import METRICS, SECTIONS
from freerun.observe.folder import RunFolder, encode, writing
from freerun.observe.page import assets
from freerun.observe.search import SampleFilter
from freerun.observe.tiles import Tile
from freerun.observe.view import RunView

POINTS = 1200
SPANS = 30_000
"""Spans of a timeline that is whole in the report; of a longer one, a part is in detail."""
SAMPLES, SAMPLE_BYTES = 300, 5_000_000
NOTES = 50


def write_report(folder: RunFolder) -> Path:
    """Write the page and say where."""
    view = RunView(folder)
    data = payload(view)
    page = Template(assets.report_page()).substitute(
        title=escape(folder.name),
        outcome=escape(data["overview"]["outcome"]),
        tiles="\n".join(_tile(tile) for tile in data["overview"]["tiles"]),
        notes=_notes(view),
        style=assets.style(),
        data=to_script(data),
        script=assets.script(),
    )
    with writing(folder.report):
        write_atomically(folder.report, page)  # whoever has the page open never reads half of it
    return folder.report


@contextmanager
def reported(folder: RunFolder, wanted: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """The report is written after the block, however that ends; what it failed with comes first. Not if it is not
    `wanted` then: what has not begun leaves the one that is there."""
    try:
        yield
    except BaseException:
        if wanted():
            with suppress(FreerunError):
                write_report(folder)
        raise
    write_report(folder)


def payload(view: RunView) -> dict[str, Any]:
    """All that the page asks for."""
    overview = view.overview()
    return {
        "described": {"metrics": METRICS, "sections": SECTIONS},
        "overview": overview,
        "curves": view.curves(points=POINTS),
        "timeline": timeline(view),
        "samples": some_samples(view),
    }


def timeline(view: RunView) -> dict[str, Any]:
    first, last = view.spans.wall
    opening = view.timeline()["opening"]
    if view.spans.num_spans <= SPANS:
        detail = view.spans.window(first, last, named_bars=SPANS)
    else:
        margin_s = 2 * (opening[1] - opening[0])
        low, high = max(opening[0] - margin_s, first), min(opening[1] + margin_s, last)
        detail = view.spans.window(low, high, width=4000, named_bars=2000)
    noted = [[note.time_s, note.text] for note in view.notes[-NOTES:]]
    about = {"opening": opening, "notes": noted}
    return {"whole": {**view.spans.window(first, last, width=2000), **about}, "detail": {**detail, **about}}


def some_samples(view: RunView) -> dict[str, Any]:
    """The newest, the oldest, and some from in between, as many as fit."""
    rows: dict[int, Any] = {}
    records: dict[str, Any] = {}
    left, recorded = SAMPLE_BYTES, 0
    try:
        newest = view.samples(SampleFilter(), limit=SAMPLES // 3)
        recorded, top = newest.total or 0, newest.rows[0].id if newest.rows else 0
        between = [top * part // 13 for part in range(12, 1, -1)]
        asked = [(None, SAMPLES // 3), (SAMPLES // 3 + 1, SAMPLES // 3), *((id, SAMPLES // 36) for id in between)]
        for before, limit in asked:
            for row in view.samples(SampleFilter(), before, limit).rows:
                if row.id in rows:
                    continue
                record = view.sample(row.id)
                size = len(encode(record))
                if size <= left and size < SAMPLE_BYTES / 3:
                    rows[row.id], records[str(row.id)] = row, record
                    left -= size
    except DataError:  # no database, or none that can be read: the page is without samples
        pass
    return {"rows": [rows[id] for id in sorted(rows, reverse=True)], "records": records, "recorded": recorded}


def to_script(data: Any) -> str:
    """JSON that may stand inside a <script> element, whatever text it holds."""
    text = encode(data).decode()
    for risky in "<>&\u2028\u2029":
        text = text.replace(risky, f"\\u{ord(risky):04x}")
    return text


def _tile(tile: Tile) -> str:
    return (
        f'<div class="tile {tile.tone}"><dt>{escape(tile.label)}</dt>'
        f"<dd>{escape(tile.value)}</dd><p>{escape(tile.note)}</p></div>"
    )


def _notes(view: RunView) -> str:
    """For browsers without scripts: the last ones. A failing engine may have said thousands."""
    rows = "".join(f"<li>step {note.step}: {escape(note.text)}</li>" for note in view.notes[-NOTES:])
    return f"<ul>{rows}</ul>" if rows else ""
