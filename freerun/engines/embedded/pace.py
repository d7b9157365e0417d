"""How many steps go into a burst: as many as take a few milliseconds.

Between two bursts the host looks at what came out and prepares the next one, while the device works; so a burst must
not be shorter than that takes. But new weights wait for two bursts, and an answer that has ended runs on through as
many. Where a step takes long, one is enough.

Consumes how long bursts took; produces the length of the next.
"""

from math import ceil

ENOUGH_S = 0.005
_SHORTEST_S = 1e-6
_NEWEST = 0.2
"""What the newest burst counts in the mean."""


class Pace:
    def __init__(self, most: int) -> None:
        self._most = self.steps = most
        self._step_s = 0.0

    def took(self, steps: int, burst_s: float) -> None:
        """A burst of so many steps, on whatever it had to wait for: the device, or the host that came late."""
        step_s = max(burst_s / steps, _SHORTEST_S)
        self._step_s += (step_s - self._step_s) * (_NEWEST if self._step_s else 1.0)
        self.steps = min(max(ceil(ENOUGH_S / self._step_s), 1), self._most)
