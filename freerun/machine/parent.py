"""What a child process has to do with its parent: end when it ends, and say whether it is ready. `processes.py` is the
parent's side.

Two pipes tie a child to its parent. The first is its standard input, the lifeline: when the parent ends, in whatever
way, kill -9 included, the kernel closes it. A parent that promises to (`PULSE_S`) writes to it now and then, and a
child that has not heard from such a parent for so long ends too: it may be stopped, or hang. On the second pipe the
child says that it is ready, and where it can be reached, or which of our own errors keeps it from that.

A thread reads the lifeline. Processes that fork must not have threads: the judges' workers use `kill_with_parent`. The
sandbox, which imports `core` alone and runs programs that may fight back, has its own ways.
"""

import ctypes
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from freerun.core import FreerunError, errors

READY_FD = "FREERUN_READY_FD"
"""The environment variable that holds the descriptor of that second pipe. Without it, nothing is announced."""
PULSE_S = "FREERUN_PULSE_S"
"""The environment variable with how long a parent may be silent. Without it, nothing is written to the lifeline."""
RUN_KEY = "FREERUN_RUN_KEY"
"""The environment variable with the key that a run's processes show each other. A command line could be read by
anyone."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


@dataclass(slots=True, frozen=True)
class Refusal:
    """The error that a process ended with instead of getting ready."""

    kind: str
    message: str
    detail: str

    def error(self) -> FreerunError:
        kind = getattr(errors, self.kind, FreerunError)
        refused: FreerunError = kind(self.message, self.detail)
        return refused


def end_with_parent() -> None:
    """At once, whatever this process is doing."""
    when_parent_ends(lambda: os._exit(1))


def when_parent_ends(then: Callable[[], object]) -> None:
    """Call `then`, on a thread, when the lifeline closes or falls silent."""
    pulse_s = float(os.environ.pop(PULSE_S, 0)) or None

    def wait() -> None:
        while select.select([0], [], [], pulse_s)[0] and os.read(0, 4096):
            pass
        then()

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


def announce_ready(where: str) -> None:
    _announce(where.encode())


def announce_refusal(error: FreerunError) -> None:
    """After `announce_ready` nobody listens any more, and the parent finds the error in the log."""
    _announce(msgspec.json.encode(Refusal(type(error).__name__, error.message, error.detail)))


def _announce(message: bytes) -> None:
    if fd := os.environ.pop(READY_FD, None):
        with suppress(OSError), os.fdopen(int(fd), "wb") as pipe:
            pipe.write(message)


def kill_with_parent(kill: bool = True) -> None:
    """Have the kernel kill this process when its parent ends, whatever it is doing (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL if kill else 0)


def adopt_orphans() -> None:
    """What a child of ours starts stays below us when the child ends, so that it can be found (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
