"""What every process was doing, when: a Chrome trace-event file that opens in Perfetto (ui.perfetto.dev).

Consumes spans, counters and instants stamped with this machine's `time.monotonic()`; produces a JSON array, one event a
line, in microseconds since the timeline began. The array grows while the run does, so its `]` is missing until
`close()`: viewers and `read_timeline` accept that, and a kill loses the last few events at most.

A run that is resumed continues the same file: its time goes on where the file ended.
Spans of one track must follow or nest in each other; viewers cannot draw others. One thread writes.
"""

import re
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from freerun.core.files import write_atomically
from freerun.core.reports import Span
from freerun.observe.folder import encode, writing

FLUSH_EVENTS = 16
FLUSH_S = 1.0
_MICRO = 1e6


class Timeline:
    """Writes the file. `process` is a name such as "engine 0", `track` a lane of it such as "generate"."""

    def __init__(self, path: Path, start_s: float | None = None) -> None:
        """`start_s` is the moment of `time.monotonic()` that becomes zero: now, unless told."""
        self._path = path
        before = read_timeline(path)
        self._pids, self._tids = _names(before)
        self._zero_s = (time.monotonic() if start_s is None else start_s) - _end_us(before) / _MICRO
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _reopen(path, before)
            self._file = path.open("ab")
        self._first = not before
        self._pending = 0
        self._flushed_s = time.monotonic()

    def span(self, process: str, track: str, name: str, start_s: float, end_s: float, **args: Any) -> None:
        start_us, end_us = self._us(start_s), self._us(end_s)
        self._at(process, track, ph="X", name=name, ts=start_us, dur=round(max(end_us - start_us, 0), 1), args=args)

    def instant(self, process: str, track: str, name: str, time_s: float, **args: Any) -> None:
        self._at(process, track, ph="i", s="p", name=name, ts=self._us(time_s), args=args)

    def counter(self, process: str, name: str, time_s: float, value: float) -> None:
        self._write(ph="C", name=name, pid=self._pid(process), tid=0, ts=self._us(time_s), args={name: value})

    def close(self) -> None:
        """Make it strictly valid JSON. Closing twice is harmless."""
        if not self._file.closed:
            with writing(self._path), self._file:
                self._file.write(b"\n]\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _us(self, time_s: float) -> float:
        """Microseconds since the start; what began before it is cut there."""
        return round(max(time_s - self._zero_s, 0.0) * _MICRO, 1)

    def _at(self, process: str, track: str, **event: Any) -> None:
        pid = self._pid(process)
        self._write(**event, pid=pid, tid=self._tid(pid, track))

    def _pid(self, process: str) -> int:
        if process not in self._pids:
            pid = self._pids[process] = len(self._pids) + 1
            self._write(ph="M", name="process_name", pid=pid, tid=0, args={"name": process})
            self._write(ph="M", name="process_sort_index", pid=pid, tid=0, args={"sort_index": _order(process)})
        return self._pids[process]

    def _tid(self, pid: int, track: str) -> int:
        if (pid, track) not in self._tids:
            tid = self._tids[pid, track] = sum(p == pid for p, _ in self._tids) + 1
            self._write(ph="M", name="thread_name", pid=pid, tid=tid, args={"name": track})
        return self._tids[pid, track]

    def _write(self, **event: Any) -> None:
        with writing(self._path):
            self._file.write((b"" if self._first else b",\n") + encode(event))
        self._first = False
        self._pending += 1
        now_s = time.monotonic()
        if self._pending >= FLUSH_EVENTS or now_s - self._flushed_s >= FLUSH_S:
            with writing(self._path):
                self._file.flush()
            self._pending, self._flushed_s = 0, now_s


def _reopen(path: Path, before: list[dict[str, Any]]) -> None:
    """Write an array that is still open: without the last run's bracket or torn event, and never half written."""
    write_atomically(path, b"[\n" + b",\n".join(encode(event) for event in before))


def read_timeline(path: Path) -> list[dict[str, Any]]:
    """The events of a timeline, closed or not; none where the file is missing. A torn last event is skipped."""
    if not path.exists():
        return []
    raw = path.read_bytes()
    try:
        return msgspec.json.decode(raw, type=list[dict[str, Any]])
    except msgspec.DecodeError:
        return list(_whole_events(raw))


def _whole_events(raw: bytes) -> Iterable[dict[str, Any]]:
    for line in raw.split(b"\n"):
        event = line.strip().removesuffix(b",")
        if event in {b"", b"[", b"]"}:
            continue
        try:
            yield msgspec.json.decode(event, type=dict[str, Any])
        except msgspec.DecodeError:
            return


def read_spans(path: Path) -> list[Span]:
    """The spans of a timeline by name, ordered by their start."""
    events = read_timeline(path)
    pids, tids = _names(events)
    processes = {pid: name for name, pid in pids.items()}
    tracks = {(pid, tid): name for (pid, name), tid in tids.items()}
    found = [
        Span(
            process=processes[e["pid"]],
            track=tracks[e["pid"], e["tid"]],
            name=e["name"],
            start_s=e["ts"] / _MICRO,
            end_s=(e["ts"] + e["dur"]) / _MICRO,
            args=e["args"],
        )
        for e in events
        if e["ph"] == "X"
    ]
    return sorted(found, key=lambda span: span.start_s)


def _names(events: list[dict[str, Any]]) -> tuple[dict[str, int], dict[tuple[int, str], int]]:
    """Process → pid, and (pid, track) → tid, from the metadata events."""
    named = [e for e in events if e["ph"] == "M"]
    pids = {e["args"]["name"]: e["pid"] for e in named if e["name"] == "process_name"}
    tids = {(e["pid"], e["args"]["name"]): e["tid"] for e in named if e["name"] == "thread_name"}
    return pids, tids


def _end_us(events: list[dict[str, Any]]) -> float:
    return max((e["ts"] + (e["dur"] if e["ph"] == "X" else 0.0) for e in events if e["ph"] != "M"), default=0.0)


def _order(process: str) -> int:
    """Viewers show data flowing down: controller, engines by number, agents, judges, trainer, evaluator, the rest."""
    first = {"controller": 0, "agents": 9_998, "rewards": 9_999, "trainer": 10_000, "evaluator": 10_001}
    number = re.fullmatch(r"engine (\d+)", process)
    return 1 + int(number[1]) if number else first.get(process, 20_000)
