"""A run that is struck and gone on with, from its start to its end: the loop of `freerun chaos`."""

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path

from freerun.bench.chaos_parts import Part, parts_of
from freerun.bench.chaos_run import SupervisedRun
from freerun.bench.chaos_schedule import Strike
from freerun.bench.chaos_strikes import Striker, Struck
from freerun.bench.chaos_verdict import Memory
from freerun.core import FreerunError
from freerun.machine.descendants import descendants

_LOOK_S = 0.02
_MEMORY_S = 1.0
_HUNG_S = 180.0
"""A run that makes no step for so long is ended, and gone on with. After a third of that, the loop
says what it waits for."""
_MISSING_S = 120.0
"""A part that is not there for so long does not come back, and is none that the run could miss."""
_FAILURES = 3
"""So many times in a row the run may end without a step, and without having been struck."""
_GONE_S = 10.0
"""After so long, nothing may be left of a run that has ended."""


@dataclass
class Storm:
    """The run with all that is done to it.

    Consumes the schedule and the run's steps; produces strikes, restarts, and what came of each. Waits for nothing but
    the clock: it looks at all of it many times a second. It is unblocked for good by the end of the run, and a run that
    makes no more steps is ended.
    """

    run: SupervisedRun
    strikes: list[Strike]
    striker: Striker
    struck: list[Struck] = field(default_factory=list)
    memory: Memory = field(default_factory=Memory)
    hung: int = 0
    left: list[str] = field(default_factory=list)
    early: str = ""
    _next_s: float | None = None
    """When the next strike is due; None before the run has a checkpoint."""
    _moved_s: float = 0.0
    """When the last step was made, or the last controller started."""
    _struck_since_start: bool = False
    _stepped_since_start: bool = False
    _failures: int = 0
    _memory_s: float = 0.0
    _seen: dict[int, str] = field(default_factory=dict)
    """All processes of the run that there were, by number, with the moment they began."""

    async def to_the_end(self) -> float:
        """The seconds from its first start to its end."""
        try:
            await self.run.train()
            self._moved_s = time.monotonic()
            await self._watched()
            wall_s = time.monotonic() - self.run.started_s
        finally:
            self.striker.end()
            await self.run.end()
        await self._gone()
        return wall_s

    async def _watched(self) -> None:
        while True:
            if await self._over():
                return
            await asyncio.sleep(_LOOK_S)

    async def _over(self) -> bool:
        self.striker.go_on()
        self._look()
        if self.run.ended is not None:
            self._look()
            self.striker.controller_ended()
            return await self._on_end(self.run.ended)
        self._see_memory()
        self._strike_if_due()
        await self._end_if_hung()
        return False

    def _look(self) -> None:
        for made in self.run.look():
            self._moved_s, self._stepped_since_start = made.at_s, True
            for one in self.struck:
                if one.recovered_s is None and made.at_s > one.at_s:
                    one.recovered_s = made.at_s - one.at_s
                    print(f"#{one.strike.number}: step {made.step} after {one.recovered_s:.1f} s", flush=True)

    async def _on_end(self, code: int) -> bool:
        if code == 0 or self.run.is_complete:
            if left := len(self.strikes):
                self.early = f"the run was over before {left} of the kills: give it more steps, or a smaller --every"
            return True
        if self.striker.disk_is_full:
            return False  # whoever has a run on it would make room first
        explained = self._struck_since_start or self._stepped_since_start
        self._failures = 0 if explained else self._failures + 1
        if self._failures >= _FAILURES:
            raise self.run.failure(f"the run ends {self._failures} times in a row without a step")
        self._struck_since_start = self._stepped_since_start = False
        self._moved_s = time.monotonic()
        await self.run.resume()
        return False

    def _strike_if_due(self) -> None:
        if not self.strikes or not self._may_begin():
            return
        now_s, strike = time.monotonic(), self.strikes[0]
        self._next_s = self._next_s or now_s + strike.after_s
        if now_s < self._next_s:
            return
        struck = self.striker.strike(strike, self._parts(), self.run.last_step)
        if struck is None:  # there is none now: the next look may find one
            if now_s > self._next_s + _MISSING_S:
                raise FreerunError(
                    f"the run has had no {strike.kind} to strike for {_MISSING_S:.0f} s, though it goes on"
                )
            return
        self._struck_since_start = True
        self.struck.append(struck)
        self.strikes.pop(0)
        self._next_s = now_s + self.strikes[0].after_s if self.strikes else None
        lasts = {None: ", for good", 0.0: ""}.get(strike.for_s, f" for {strike.for_s or 0:.1f} s")
        at_s = now_s - self.run.started_s
        print(f"#{strike.number} at {at_s:.1f} s, step {struck.step}: {strike.what} {struck.victim}{lasts}", flush=True)

    def _may_begin(self) -> bool:
        """`freerun resume` wants a checkpoint."""
        return self._next_s is not None or self.run.can_be_struck()

    async def _end_if_hung(self) -> None:
        if time.monotonic() - self._moved_s < _HUNG_S:
            return
        print(f"no step for {_HUNG_S:.0f} s: the run is ended, and gone on with", flush=True)
        self.hung += 1
        self._struck_since_start = True
        await self.run.end()

    def _parts(self) -> list[Part]:
        assert self.run.process is not None
        return parts_of(self.run.process.pid)

    def _see_memory(self) -> None:
        """Once a step was made: what starts has not its size yet."""
        assert self.run.process is not None
        now_s = time.monotonic()
        if now_s < self._memory_s + _MEMORY_S:
            return
        self._memory_s = now_s
        for pid in descendants(self.run.process.pid):
            self._seen.setdefault(pid, _began(pid))
        if self._stepped_since_start:
            for part in self._parts():
                self.memory.see(part.name, part.rss_bytes)

    async def _gone(self) -> None:
        """What is left of the run after some time is named."""
        until_s = time.monotonic() + _GONE_S
        while True:
            self.left = [f"process {pid}" for pid in self._left()]
            if not self.left or time.monotonic() > until_s:
                return
            await asyncio.sleep(_LOOK_S)

    def _left(self) -> list[int]:
        return [pid for pid, began in self._seen.items() if began and _began(pid) == began]


def _began(pid: int) -> str:
    """What tells it from a later process of the same number; empty when it has ended, or is dead and not buried."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]
