"""When a process was busy with things of which it does several at a time, as spans in lanes: what is in one lane never
overlaps, which is what viewers of timelines need.

A thing takes the lowest lane that is free; past the last, things share one more. Things that follow each other in a
lane within `gap_s` become one span, which counts them: thousands of judgements of a millisecond are a few spans. A span
that has grown to `LONGEST_S` is ended, so that whoever follows a run sees it.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from freerun.core.reports import Span

GAP_S = 0.005
LONGEST_S = 10.0
_MOST_KEPT = 10_000
"""Spans that nobody has taken yet: where nobody ever does, the oldest go."""


@dataclass(slots=True)
class _Lane:
    track: str
    since_s: float | None = None
    """When what goes on in it began."""
    count: int = 0
    """Things in the span that may become longer."""
    start_s: float = 0.0
    end_s: float = 0.0
    """Belong to that span; without one, `end_s` is the end of the last."""
    args: dict[str, Any] = field(default_factory=dict)


class Lanes:
    """Consumes `begin` or `busy`; produces spans, for whoever takes them now and then."""

    def __init__(self, process: str, track: str, name: str, counted: str, most: int, gap_s: float = GAP_S) -> None:
        """`counted` is what a span's args call the number of things in it. There are at most `most` lanes, and the one
        that is shared."""
        self._process, self._name, self._counted, self._gap_s = process, name, counted, gap_s
        self._lanes = [_Lane(f"{track} {number}") for number in range(1, most + 1)]
        self._shared = _Lane(f"{track}, others")
        self._ended: deque[Span] = deque(maxlen=_MOST_KEPT)

    def begin(self, **args: Any) -> Callable[[], None]:
        """Something begins. It ends when what is returned is called. `args` are shown with a span of one thing."""
        lane, start_s = next((lane for lane in self._lanes if lane.since_s is None), None), time.monotonic()
        if lane:
            lane.since_s = start_s

        def end() -> None:
            if lane:
                lane.since_s = None
            self._add(lane or self._shared, start_s, time.monotonic(), args)

        return end

    @contextmanager
    def busy(self, **args: Any) -> Iterator[None]:
        """For as long as the block takes."""
        end = self.begin(**args)
        try:
            yield
        finally:
            end()

    def take(self, every: bool = False) -> list[Span]:
        """The spans that will not become longer; or every one, at the end."""
        now_s = time.monotonic()
        for lane in (*self._lanes, self._shared):
            if every or (now_s if lane.since_s is None else lane.since_s) - lane.end_s >= self._gap_s:
                self._end(lane)
        taken = list(self._ended)
        self._ended.clear()
        return taken

    def _add(self, lane: _Lane, start_s: float, end_s: float, args: dict[str, Any]) -> None:
        if start_s - lane.end_s >= self._gap_s or lane.end_s - lane.start_s >= LONGEST_S:
            self._end(lane)
        if lane.count == 0:
            lane.start_s, lane.args = max(start_s, lane.end_s), args
        lane.end_s = end_s
        lane.count += 1

    def _end(self, lane: _Lane) -> None:
        if lane.count:
            args = {**(lane.args if lane.count == 1 else {}), self._counted: lane.count}
            self._ended.append(Span(lane.track, self._name, lane.start_s, lane.end_s, args, self._process))
        lane.count = 0
