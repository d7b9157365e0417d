"""Strikes at the parts of a run that goes on: done, held for as long as they last, and taken back.

A part that is stopped cannot notice that its controller has ended: when that has, what is held is let go of.
"""

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

from freerun.bench.chaos_parts import Held, Part
from freerun.bench.chaos_schedule import Strike, What
from freerun.bench.small_disk import SmallDisk

_PERIOD_S, _RUNS_S = 0.2, 0.02
"""A part that is starved runs so long of each period."""


@dataclass
class Struck:
    """A strike that was done, and what came of it."""

    strike: Strike
    victim: str
    at_s: float
    step: int
    """The last that was made before."""
    recovered_s: float | None = None
    """From the strike to the next step that the run made."""


@dataclass
class Lasting:
    what: What
    until_s: float | None
    held: Held | None
    """None: the disk."""
    stopped: bool = True


class Striker:
    def __init__(self, disk: SmallDisk | None) -> None:
        self._disk = disk
        self._lasting: list[Lasting] = []

    @property
    def disk_is_full(self) -> bool:
        return any(lasting.what is What.DISK for lasting in self._lasting)

    def strike(self, strike: Strike, parts: Sequence[Part], step: int) -> Struck | None:
        """None where the run has no such part now."""
        now_s = time.monotonic()
        until_s = None if strike.for_s is None else now_s + strike.for_s
        if strike.what is What.DISK:
            assert self._disk is not None
            self._disk.fill()
            self._lasting.append(Lasting(strike.what, until_s, None))
            return Struck(strike, "of its folder", now_s, step)
        of_kind = [part for part in parts if part.kind is strike.kind]
        if not of_kind:
            return None
        victim = of_kind[strike.victim_of(len(of_kind))]
        try:
            held = Held(victim)
        except ProcessLookupError:
            return None
        if strike.what is What.KILL:
            with held:
                held.send(signal.SIGKILL)
        else:
            held.send(signal.SIGSTOP)
            self._lasting.append(Lasting(strike.what, until_s, held))
        return Struck(strike, victim.name, now_s, step)

    def go_on(self) -> None:
        """Starve those that are to be starved, and end what has lasted long enough."""
        now_s = time.monotonic()
        for lasting in list(self._lasting):
            if lasting.until_s is not None and now_s >= lasting.until_s:
                self._end(lasting)
            elif lasting.what is What.STARVE and lasting.held:
                stopped = now_s % _PERIOD_S >= _RUNS_S
                if stopped != lasting.stopped:
                    lasting.held.send(signal.SIGSTOP if stopped else signal.SIGCONT)
                    lasting.stopped = stopped

    def controller_ended(self) -> None:
        """Its children are to notice. One that cannot is not the run's any more."""
        for lasting in [lasting for lasting in self._lasting if lasting.held]:
            self._end(lasting)

    def end(self) -> None:
        for lasting in list(self._lasting):
            self._end(lasting)

    def _end(self, lasting: Lasting) -> None:
        self._lasting.remove(lasting)
        if lasting.held:
            with lasting.held:
                lasting.held.send(signal.SIGCONT)
        elif self._disk:
            self._disk.empty()
