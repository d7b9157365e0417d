"""Kills a process of ours that somebody has stopped (SIGSTOP): it would hang for ever, and all who wait for it.

Whoever waits for its end does the rest. What counts are looks, not the clock: where we were stopped too, a batch system
may have stopped the whole run, and goes on with all of it.
"""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress

STOPPED_S = 10.0
"""How long a process may be stopped."""
_LOOKS = 10


class StopWatch:
    """Looks at a child until it is cancelled, or `ended` says that the process is gone. Nobody may wait for the child
    before: another process could have its id."""

    def __init__(self, pid: int, ended: Callable[[], bool] = lambda: False) -> None:
        self._pid, self._ended = pid, ended
        self._stopped = 0
        """Looks in a row that found it so."""
        self._again()

    def cancel(self) -> None:
        self._next.cancel()

    def _again(self) -> None:
        self._next = asyncio.get_running_loop().call_later(STOPPED_S / _LOOKS, self._look)

    def _look(self) -> None:
        if self._ended():
            return
        self._stopped = self._stopped + 1 if is_stopped(self._pid) else 0
        if self._stopped >= _LOOKS:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self._pid, signal.SIGKILL)
        self._again()


def is_stopped(pid: int) -> bool:
    """By SIGSTOP or the like, and not by a debugger (Linux only: elsewhere nothing seems to be)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2].startswith(b"T")
    except OSError:
        return False
