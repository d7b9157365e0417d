"""status.json: what every process of a run is doing right now, for whoever looks from outside.

Consumes what the loop tells; produces the file, whole at any moment, from the folder's creation to the run's end. A
thread of its own writes it, at most twice a second, and at least every two seconds as a sign of life: a disk that is
stuck stops nobody. Without such a sign for a while, and without an end, the run was killed.
"""

import asyncio
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

import msgspec

from freerun.core import Batch
from freerun.core.files import write_atomically
from freerun.core.groups import GroupEvent
from freerun.core.observer import Observer
from freerun.core.records import StepRecord
from freerun.observe.folder import RunFolder, encode, whole

WRITE_S = 0.5
BEAT_S = 1.5
LOST_S = 15.0
_CLOSE_S = 2.0


class RunPhase(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    """Somebody ended it. It can be resumed if it has a checkpoint."""
    FAILED = "failed"
    LOST = "lost"
    """It gives no sign of life, and has not said that it ended: it was killed."""


@dataclass(frozen=True)
class Doing:
    what: str
    since: float
    """Seconds since the epoch, as all times here."""


@dataclass(frozen=True)
class RunStatus:
    """What status.json holds."""

    pid: int
    host: str
    started: float
    """When this process began with the run; a resumed run has another beginning."""
    heartbeat: float
    begun: bool = False
    """Whether it samples or learns by now."""
    step: int = 0
    """Training steps done."""
    version: int = 0
    doing: dict[str, Doing] = field(default_factory=dict)
    """By process."""
    ended: str | None = None
    """"done", "stopped" or "failed: " and why."""
    engines: dict[str, str] = field(default_factory=dict)
    """Those that the run is to have, by name, with the names of their machines. What each does is in `doing`."""

    @property
    def state(self) -> RunPhase:
        if self.ended is not None:
            return RunPhase(self.ended.partition(":")[0])
        if time.time() - self.heartbeat > LOST_S:
            return RunPhase.LOST
        return RunPhase.RUNNING if self.begun else RunPhase.STARTING


def read_status(folder: Path) -> RunStatus | None:
    """None for a run that has no such file, or one that is no status."""
    try:
        status = msgspec.json.decode(RunFolder(folder).status.read_bytes(), type=RunStatus)
        return status if status.state else None
    except (OSError, ValueError):  # msgspec's errors are values', and so is an end that there is not
        return None


def write_starting(folder: RunFolder) -> None:
    """The folder is there; the run is about to begin."""
    with suppress(OSError):
        write_atomically(folder.status, encode(_beginning()))


@contextmanager
def ended(folder: RunFolder) -> Iterator[None]:
    """After the block the file has an end, also where the run failed before it began. That of another process, whose
    run this one could not have, is left alone."""
    outcome = RunPhase.DONE.value
    try:
        yield
    except BaseException as error:
        outcome = _outcome(error)
        raise
    finally:
        status = read_status(folder.path)
        if status and status.ended is None and (status.pid, status.host) == (os.getpid(), socket.gethostname()):
            with suppress(OSError):
                write_atomically(folder.status, encode(replace(status, ended=outcome)))


def _beginning() -> RunStatus:
    now = time.time()
    return RunStatus(os.getpid(), socket.gethostname(), now, now)


class StatusFile(Observer):
    """Keeps the file up to date inside of `kept()`."""

    def __init__(self, folder: RunFolder, step: int = 0) -> None:
        self._path = folder.status
        self._status = replace(_beginning(), step=step, version=step)
        self._doing: dict[str, Doing] = {}
        self._engines: dict[str, str] = {}
        self._changed = True
        self._end = threading.Event()

    def doing(self, process: str, what: str) -> None:
        if (known := self._doing.get(process)) is None or known.what != what:
            self._doing[process] = Doing(whole(what), time.time())
            self._changed = True

    def engines_wanted(self, machines: Mapping[str, str]) -> None:
        self._engines = dict(machines)
        self._changed = True

    def group(self, event: GroupEvent) -> None:
        self._begun()

    def learning(self, batch: Batch, masked_tokens: int) -> None:
        self._begun()

    def step(self, record: StepRecord) -> None:
        self._status = replace(self._status, step=record.step, version=record.version)
        self._changed = True

    @contextmanager
    def kept(self) -> Iterator["StatusFile"]:
        thread = threading.Thread(target=self._write, name="status", daemon=True)
        thread.start()
        ended = RunPhase.DONE.value
        try:
            yield self
        except BaseException as error:
            ended = _outcome(error)
            raise
        finally:
            self._status = replace(self._status, ended=ended)
            self._end.set()
            thread.join(_CLOSE_S)

    def _begun(self) -> None:
        if not self._status.begun:
            self._status = replace(self._status, begun=True)
            self._changed = True

    def _write(self) -> None:
        """A write that fails is tried again, by the next."""
        written = 0.0
        while True:
            ends, now = self._end.is_set(), time.time()
            if ends or self._changed or now - written >= BEAT_S:
                self._changed = False
                status = replace(self._status, heartbeat=now, doing=dict(self._doing), engines=self._engines)
                with suppress(OSError):
                    write_atomically(self._path, encode(status))
                written = now
            if ends:
                return
            self._end.wait(WRITE_S)


def _outcome(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
        return RunPhase.STOPPED.value
    first = (str(error).splitlines() or [type(error).__name__])[0]
    return f"{RunPhase.FAILED.value}: {first}"
