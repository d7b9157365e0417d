"""Whether guessing pays, where a device guesses by itself: what it gives in tokens a second, with and without, for
about so many rows. Both are measured in the run, and what is not in use is tried again now and then."""

from collections import deque
from dataclasses import dataclass, field
from statistics import median

ENOUGH = 4
"""Bursts of a kind, before their pace is believed. The first after a change does not count: it may compile."""
_NEWEST = 8
"""Bursts that a pace is the median of."""
_FIRST_WAIT, _LAST_WAIT = 64, 2_048
"""Bursts until what is not in use is tried again; each time twice as many."""


@dataclass(slots=True)
class _Pace:
    seen: deque[float] = field(default_factory=lambda: deque(maxlen=_NEWEST))

    @property
    def is_known(self) -> bool:
        return len(self.seen) >= ENOUGH

    @property
    def tokens_per_s(self) -> float:
        return median(self.seen)


@dataclass(slots=True)
class _Rows:
    """About so many rows."""

    paces: dict[bool, _Pace] = field(default_factory=lambda: {False: _Pace(), True: _Pace()})
    wait: int = _FIRST_WAIT
    left: int = _FIRST_WAIT
    using: bool = False

    def choose(self) -> bool:
        if not all(pace.is_known for pace in self.paces.values()):
            return self.paces[False].is_known  # without first, then with
        better = self.paces[True].tokens_per_s > self.paces[False].tokens_per_s
        if better != self.using:
            self.using, self.wait = better, _FIRST_WAIT
            self.left = self.wait
        elif not self.left:
            self.wait = min(2 * self.wait, _LAST_WAIT)
            self.left = self.wait
            self.paces[not better].seen.clear()
            return not better
        self.left -= 1
        return better


class GuessPace:
    def __init__(self) -> None:
        self._rows: dict[int, _Rows] = {}
        self._before: tuple[int, bool] | None = None

    def wanted(self, rows: int) -> bool:
        """Whether the next burst of so many rows is to guess."""
        return self._rows.setdefault(rows.bit_length(), _Rows()).choose()

    def saw(self, rows: int, guessing: bool, tokens: int, seconds: float) -> None:
        """A burst in which nobody did anything but sample."""
        kind = rows.bit_length(), guessing
        if kind == self._before and seconds > 0:
            self._rows.setdefault(kind[0], _Rows()).paces[guessing].seen.append(tokens / seconds)
        self._before = kind
