"""How many steps go into a burst: as many as keep the device busy without hurry for the host, and no more.

Between two bursts the host looks at what came out and prepares the next one, while the device works: a burst should
take twice as long as that, since other threads want the host too, and a few milliseconds at least. But new weights wait
for two bursts, and an answer that has ended runs on through as many. Where a step takes long, one is enough.

Consumes how long bursts took; produces the length of the next.
"""

from math import ceil

ENOUGH_S = 0.005
HOST_SHARE = 0.5
_SHORTEST_S = 1e-6
_NEWEST = 0.2
"""What the newest burst counts in the means."""


class BurstLength:
    def __init__(self, most: int) -> None:
        self._most = self.steps = most
        self._step_s = self._host_s = 0.0

    def took(self, steps: int, burst_s: float, waited_s: float) -> None:
        """A burst of so many steps, for part of which the host had nothing to do but wait."""
        newest = _NEWEST if self._step_s else 1.0
        self._step_s += (max(burst_s / steps, _SHORTEST_S) - self._step_s) * newest
        self._host_s += (burst_s - waited_s - self._host_s) * newest
        self.steps = min(max(ceil(max(ENOUGH_S, self._host_s / HOST_SHARE) / self._step_s), 1), self._most)
