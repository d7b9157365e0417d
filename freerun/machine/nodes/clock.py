"""How a node's monotonic clock relates to ours, measured by heartbeats that go there and come back."""

from collections import deque

from freerun.core.clock import Clock

_KEPT = 60


class NodeClock(Clock):
    """Goes by the fastest of the last round trips: half of it is the most that the measurement can be wrong by."""

    def __init__(self) -> None:
        self._trips: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        self._ahead_s = 0.0

    def measured(self, sent_s: float, theirs_s: float, back_s: float) -> None:
        """We sent at `sent_s`, they answered at `theirs_s` by their clock, and we had it at `back_s`."""
        self._trips.append((back_s - sent_s, theirs_s - (sent_s + back_s) / 2))
        self._ahead_s = min(self._trips)[1]

    def ours(self, theirs_s: float) -> float:
        return theirs_s - self._ahead_s

    @property
    def round_trip_s(self) -> float | None:
        return min(self._trips)[0] if self._trips else None
