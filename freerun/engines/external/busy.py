"""When an engine had something to do, and for how long it had not."""

import time
from collections import deque

_STRETCHES = 10_000
"""Kept, at most, for whoever asks: perhaps nobody does."""


class BusyTime:
    """Busy from the first of several requests to the end of the last."""

    def __init__(self) -> None:
        self._going = 0
        self._since_s = time.monotonic()
        """Since when it has been busy, or idle."""
        self._idle_s = 0.0
        self._stretches: deque[tuple[float, float]] = deque(maxlen=_STRETCHES)

    def begin(self) -> None:
        if not self._going:
            now_s = time.monotonic()
            self._idle_s += now_s - self._since_s
            self._since_s = now_s
        self._going += 1

    def end(self) -> None:
        self._going -= 1
        if not self._going:
            self._cut()

    @property
    def idle_s(self) -> float:
        return self._idle_s + (0.0 if self._going else time.monotonic() - self._since_s)

    def stretches(self) -> list[tuple[float, float]]:
        """The busy ones since the last call, from when to when."""
        if self._going:
            self._cut()
        found = list(self._stretches)
        self._stretches.clear()
        return found

    def _cut(self) -> None:
        now_s = time.monotonic()
        self._stretches.append((self._since_s, now_s))
        self._since_s = now_s
