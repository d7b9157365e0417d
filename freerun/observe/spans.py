"""What every process did when, from timeline.json, however long the run: a window of it, as bars for a screen.

Consumes the lines of the file as they are written. Of each span only its times and its place in the file are kept;
its name and arguments are read again when it is drawn by itself. Spans that a pixel cannot tell apart become one bar.
"""

import math
import re
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from freerun.observe.tail import LinesTail

Floats = NDArray[np.float64]
NAMED_BARS = 400
"""In a window of a track with more spans than this, bars have no names."""
_MICRO = 1e6


class _Event(msgspec.Struct):
    ph: str
    name: str = ""
    pid: int = 0
    tid: int = 0
    ts: float = 0.0
    dur: float = 0.0
    args: dict[str, Any] = {}


@dataclass
class Track:
    """A lane of a process: its spans, in the order they ended."""

    process: str
    name: str
    starts: "array[float]" = field(default_factory=lambda: array("d"))
    ends: "array[float]" = field(default_factory=lambda: array("d"))
    places: "array[int]" = field(default_factory=lambda: array("q"))
    _ordered: tuple[Floats, Floats, NDArray[np.int64], Floats] | None = None

    def add(self, start_s: float, end_s: float, place: int) -> None:
        self.starts.append(start_s)
        self.ends.append(end_s)
        self.places.append(place)
        self._ordered = None

    def ordered(self) -> tuple[Floats, Floats, NDArray[np.int64], Floats]:
        """Starts in order, with their ends and places, and the latest end so far: spans may nest."""
        if self._ordered is None:
            starts, ends = np.array(self.starts), np.array(self.ends)
            order = np.argsort(starts, kind="stable")
            ends = ends[order]
            self._ordered = starts[order], ends, np.array(self.places)[order], np.maximum.accumulate(ends)
        return self._ordered

    def merged(self, gap_s: float = 0.0) -> tuple[Floats, Floats]:
        """The same time without overlaps; gaps up to `gap_s` are closed."""
        starts, _, _, reached = self.ordered()
        return _merged(starts, reached, gap_s)


class SpanIndex:
    def __init__(self, path: Path) -> None:
        self._tail = LinesTail(path)
        self._forget()

    def _forget(self) -> None:
        self.tracks: dict[tuple[int, int], Track] = {}
        self._processes: dict[int, str] = {}
        self.damaged = 0
        self.end_s = 0.0

    def refresh(self) -> None:
        """Read what was written since the last time."""
        new = self._tail.read()
        if new.anew:
            self._forget()
        for line, place in zip(new.lines, new.offsets, strict=True):
            event = line.removesuffix(b",")
            if event in (b"[", b"]"):
                continue
            try:
                self._add(msgspec.json.decode(event, type=_Event), place)
            except (msgspec.DecodeError, KeyError):
                self.damaged += 1

    def _add(self, event: _Event, place: int) -> None:
        if event.ph == "M" and event.name == "process_name":
            self._processes[event.pid] = str(event.args["name"])
        elif event.ph == "M" and event.name == "thread_name":
            process = self._processes[event.pid]
            self.tracks[event.pid, event.tid] = Track(process, str(event.args["name"]))
        elif event.ph == "X":
            start_s, end_s = event.ts / _MICRO, (event.ts + event.dur) / _MICRO
            self.tracks[event.pid, event.tid].add(start_s, end_s, place)
            self.end_s = max(self.end_s, end_s)

    def track(self, process: str, name: str) -> Track | None:
        return next((t for t in self.tracks.values() if t.process == process and t.name == name), None)

    @property
    def wall(self) -> tuple[float, float]:
        """From the first generation or training to the last thing done."""
        working = [t for t in self.tracks.values() if t.starts and t.name in ("generate", "step")]
        first = min((min(t.starts[:8]) for t in working), default=0.0)
        return first, max(self.end_s, first)

    @property
    def num_spans(self) -> int:
        return sum(len(track.starts) for track in self.tracks.values())

    def window(self, from_s: float, to_s: float, width: int = 1200, named_bars: int = NAMED_BARS) -> dict[str, Any]:
        """The bars of every track between two times, on a screen of so many pixels: [start, end, name, args, number].
        Where a track has more than so many, those that a pixel cannot tell apart are one, without a name."""
        pixel_s = max((to_s - from_s) / max(width, 1), 1e-9)
        try:
            with self._tail.path.open("rb") as file:
                rows = [
                    {"process": t.process, "track": t.name, "bars": _bars(t, from_s, to_s, pixel_s, named_bars, file)}
                    for t in sorted(self.tracks.values(), key=_order)
                    if t.starts
                ]
        except OSError:  # the run is being deleted
            rows = []
        return {"wall": self.wall, "from": from_s, "to": to_s, "rows": rows}


def _bars(track: Track, from_s: float, to_s: float, pixel_s: float, named_bars: int, file: BinaryIO) -> list[list[Any]]:
    starts, ends, places, reached = track.ordered()
    low, high = int(np.searchsorted(reached, from_s)), int(np.searchsorted(starts, to_s, side="right"))
    if high - low <= named_bars:
        spans = zip(starts[low:high].tolist(), ends[low:high].tolist(), places[low:high].tolist(), strict=True)
        seen = ((start, end, place) for start, end, place in spans if end >= from_s)
        return [[round(start, 5), round(end, 5), *_named(file, place), 1] for start, end, place in seen]
    merged_starts, merged_ends = _merged(starts[low:high], reached[low:high], pixel_s)
    counts = np.diff(np.append(np.searchsorted(starts[low:high], merged_starts), high - low))
    drawn = zip(merged_starts.tolist(), merged_ends.tolist(), counts.tolist(), strict=True)
    return [[round(start, 5), round(end, 5), "", {}, count] for start, end, count in drawn]


def _named(file: BinaryIO, place: int) -> tuple[str, dict[str, Any]]:
    """The name and the arguments of the span that stands there in the file."""
    file.seek(place)
    try:
        event = msgspec.json.decode(file.readline().strip().removesuffix(b","), type=_Event)
    except msgspec.DecodeError:  # the file was replaced in this moment: the next look is right again
        return "", {}
    return event.name, event.args


def busy(tracks: Iterable[Track]) -> tuple[Floats, Floats]:
    """When at least one of them was."""
    parts = [track.merged() for track in tracks if track.starts]
    if not parts:
        return np.zeros(0), np.zeros(0)
    starts, ends = np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])
    order = np.argsort(starts, kind="stable")
    return _merged(starts[order], np.maximum.accumulate(ends[order]), 0.0)


def seconds(of: tuple[Floats, Floats]) -> float:
    return float(np.sum(of[1] - of[0]))


def common_s(a: tuple[Floats, Floats], b: tuple[Floats, Floats]) -> float:
    """How many seconds two sets of intervals share, each without overlaps of its own."""
    if not len(a[0]) or not len(b[0]):
        return 0.0
    edges = np.unique(np.concatenate([*a, *b]))
    middles = (edges[1:] + edges[:-1]) / 2

    def inside(of: tuple[Floats, Floats]) -> NDArray[np.bool_]:
        at = np.searchsorted(of[0], middles, side="right") - 1
        found: NDArray[np.bool_] = (at >= 0) & (middles < of[1][np.maximum(at, 0)])
        return found

    return float(np.sum(np.diff(edges)[inside(a) & inside(b)]))


def _merged(starts: Floats, reached: Floats, gap_s: float) -> tuple[Floats, Floats]:
    """`starts` in order, `reached` the latest end so far at each."""
    if not len(starts):
        return starts, reached
    begins = np.concatenate([[True], starts[1:] - reached[:-1] > gap_s])
    lasts = np.concatenate([begins[1:], [True]])
    return starts[begins], reached[lasts]


def _order(track: Track) -> tuple[int, float, str, str]:
    """As data flows: engines by number, judging, agents, the trainer, the evaluator, the controller, anything else."""
    number = re.search(r"(\d+)$", track.process)
    kinds = ("engine", "rewards", "agents", "trainer", "evaluator", "controller")
    kind = next((i for i, kind in enumerate(kinds) if track.process.startswith(kind)), len(kinds))
    return kind, int(number[1]) if number else math.inf, track.process, track.name
