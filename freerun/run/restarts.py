"""Whether a part of a run that has ended is started again, and when."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from freerun.core import FreerunError, MachineLost

T = TypeVar("T")

_DEATHS = 3
"""How often in a row a part may end by itself soon after it began."""
_SOON_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0


class Restarts:
    """Those of one part. It is given up when it ends by itself again and again; the loss of its machine does not
    count."""

    def __init__(self, name: str, note: Callable[[str], None]) -> None:
        self._name, self._note = name, note
        self._began_s = time.monotonic()
        self._deaths = 0

    def given_up(self, died: FreerunError) -> bool:
        """It has ended, for that reason: whether that was once too often."""
        soon = time.monotonic() - self._began_s < _SOON_S and not isinstance(died, MachineLost)
        self._deaths = self._deaths + 1 if soon else 0
        if self._deaths >= _DEATHS:
            self._note(f"{self._name} ended {self._deaths} times in a row, and is not started again: {died}")
        return self._deaths >= _DEATHS

    async def again(self, start: Callable[[], Awaitable[T]], tries: int | None = None) -> T:
        """Until it succeeds, after growing pauses; or until so many tries in a row have failed, which the loss of its
        machine is not: then the last failure is raised."""
        pause_s, failed = _FIRST_PAUSE_S, 0
        while True:
            try:
                started = await start()
            except FreerunError as error:
                self._note(f"{self._name} could not be started again: {error}")
                failed += not isinstance(error, MachineLost)
                if failed == tries:
                    raise
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            else:
                self._began_s = time.monotonic()
                return started
