"""What a session leaves behind in its worker: ended and restored, or named, where only the worker's end would help."""

import asyncio
import concurrent.futures.thread
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

from freerun.machine.descendants import children
from freerun.rollouts.agents.protocol import Left

CANCEL_S = 0.25
"""For tasks to end that were cancelled. Most need no more than one turn of the loop."""
THREAD_S = 0.1
"""For threads to end by themselves whose work has ended."""
MOST_FILES = 256
"""More open files than before the first session: a leak, which the usual limit of 1,024 would turn into errors."""
_IDLE_EXECUTOR = concurrent.futures.thread._worker.__code__
"""What a thread of an executor runs while it has nothing to do."""


@dataclass(frozen=True)
class Surroundings:
    """As they were before the first session, and are again before each."""

    folder: str
    environment: dict[str, str]
    threads: frozenset[int]
    files: int
    printed: tuple[Any, Any]
    """sys.stdout and sys.stderr."""

    @classmethod
    def now(cls) -> "Surroundings":
        printed = (sys.stdout, sys.stderr)
        return cls(os.getcwd(), dict(os.environ), frozenset(_threads()), _open_files(), printed)

    def restore(self, loop: asyncio.AbstractEventLoop) -> Left:
        left = cancel_tasks(loop) or self._threads_left() or _children_left() or self._files_left()
        if left:
            return Left(left)
        try:
            os.chdir(self.folder)
        except OSError as error:
            return Left(f"its folder is gone: {error}")
        if dict(os.environ) != self.environment:
            os.environ.clear()
            os.environ.update(self.environment)
        sys.stdout, sys.stderr = self.printed
        signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm of this session's would go off in the next
        return Left()

    def _threads_left(self) -> str:
        """Those of executors may stay, if they are idle."""
        give_up_s = time.monotonic() + THREAD_S
        while busy := self._busy():
            if time.monotonic() > give_up_s:
                return f"a thread ({busy[0].name})"
            time.sleep(0.001)
        return ""

    def _files_left(self) -> str:
        """A few are connections that clients keep."""
        more = _open_files() - self.files
        return f"{more} open files" if more > MOST_FILES else ""

    def _busy(self) -> list[threading.Thread]:
        frames = sys._current_frames()
        new = [thread for ident, thread in _threads().items() if ident not in self.threads]
        return [
            thread
            for thread in new
            if (frame := frames.get(thread.ident or 0)) is None or frame.f_code is not _IDLE_EXECUTOR
        ]


def cancel_tasks(loop: asyncio.AbstractEventLoop) -> str:
    """What is wrong, if that does not end them all."""
    give_up_s = time.monotonic() + CANCEL_S
    try:
        loop.run_until_complete(_settle())
        while tasks := asyncio.all_tasks(loop):
            remaining_s = give_up_s - time.monotonic()
            if remaining_s <= 0:
                return f"a task that cannot be cancelled ({next(iter(tasks)).get_name()})"
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.wait(tasks, timeout=min(remaining_s, CANCEL_S / 4)))
    except BaseException as error:  # of a task: SystemExit, KeyboardInterrupt; or the loop was stopped or closed
        return f"an event loop that cannot be used ({type(error).__name__})"
    return ""


async def _settle() -> None:
    """A few turns of the loop, in which generators that nobody reads any more are closed."""
    for _ in range(3):
        await asyncio.sleep(0)


def _children_left() -> str:
    """Daemons too: this process adopts what its children leave behind."""
    left = children(os.getpid())
    return f"{len(left)} process{'es' if len(left) > 1 else ''}" if left else ""


def _open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


def _threads() -> dict[int, threading.Thread]:
    return {thread.ident: thread for thread in threading.enumerate() if thread.ident is not None}
