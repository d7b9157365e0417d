"""A process that has imported what children of ours need, and that they are forked from: torch is imported once on a
machine and not once a child, and what was imported is memory that they share. `forking.py` is its parent's side; what
is imported, its program says.

Consumes orders, each a byte with four file descriptors: the child's lifeline, where it prints to, where it says that it
is ready, and a socket to report on it. Produces a child for each, which reads its role from its lifeline, and reports
the child's id, then how it ended. Waits for orders and for ends; unblocked, for good, by the end of its parent, or when
it has had no child for a while.

A process with threads must not fork, nor one that has used a GPU. Where importing has led to either it ends, or forks
no more, and children are started the usual way.
"""

import ctypes
import gc
import os
import select
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Self

import msgspec

from freerun.machine.forkserver import may_fork, seed_anew
from freerun.machine.parent import READY_FD

PRELOADED = "preloaded"
"""The first argument of such a process. The second is the descriptor of the socket on which orders come."""
ORDER = b"+"
MAY_NOT_FORK = 3
"""Its exit code then."""
_DESCRIPTORS = 4
_LENGTH_BYTES = 8
_LATER_S = 6.0
"""When it goes on importing: a run that has just begun needs the processor itself."""
_IDLE_S = 60.0


@dataclass(slots=True, frozen=True)
class Role:
    arguments: list[str]
    """Those that the child would have been started with."""
    environment: dict[bytes, bytes]
    """The whole of it. What libraries read there when they are imported cannot change any more."""
    folder: str
    """The working folder, where Python looks for modules, too."""

    @classmethod
    def of(cls, arguments: Sequence[str], environment: Mapping[str, str]) -> Self:
        encoded = {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}
        return cls(list(arguments), encoded, os.getcwd())

    def message(self) -> bytes:
        encoded = msgspec.msgpack.encode(self)
        return len(encoded).to_bytes(_LENGTH_BYTES, "big") + encoded


def fork_children(control_fd: int, later: Sequence[str]) -> list[str]:
    """Never returns but in children: the arguments of each. `later`: modules to import when there is time."""
    if not _can_fork():
        os._exit(MAY_NOT_FORK)
    return _become(_Preloaded(control_fd, later).serve())


@dataclass(slots=True, frozen=True)
class _Forked:
    pid: int
    pidfd: int
    report: socket.socket
    """While whoever asked keeps it open, nobody else gets the process id."""

    def close(self) -> None:
        os.close(self.pidfd)
        self.report.close()


class _Preloaded:
    def __init__(self, control_fd: int, later: Sequence[str]) -> None:
        self._control = socket.socket(fileno=control_fd)
        self._later = list(later)
        self._later_s = time.monotonic() + _LATER_S
        self._running: dict[int, _Forked] = {}
        """By the descriptor that tells of their end."""
        self._ended: dict[int, _Forked] = {}
        """By that which tells that their end is known."""
        self._poll = select.poll()
        self._poll.register(self._control, select.POLLIN)

    def serve(self) -> int:
        """Returns in children: the descriptor on which each says that it is ready."""
        _share_memory()
        while True:
            ready = self._poll.poll(1000 * self._patience_s())
            if not ready:
                self._use_the_time()
            for descriptor, _ in ready:
                if descriptor in self._running:
                    self._report_end(descriptor)
                elif descriptor in self._ended:
                    self._forget(descriptor)
                elif (announces := self._fork()) is not None:
                    return announces

    def _patience_s(self) -> float:
        return max(self._later_s - time.monotonic(), 0.0) if self._later else _IDLE_S

    def _use_the_time(self) -> None:
        if self._later:
            import_module(self._later.pop(0))
            _share_memory()
        elif not self._running:
            os._exit(0)

    def _fork(self) -> int | None:
        """In the child what `serve` returns."""
        order, descriptors, _, _ = socket.recv_fds(self._control, len(ORDER), _DESCRIPTORS)
        if not order:
            os._exit(0)
        lifeline, prints_to, announces, report = descriptors
        try:
            pid = os.fork() if _can_fork() else None
        except OSError:
            pid = None
        if pid == 0:
            os.setsid()
            for ours, standard in ((lifeline, 0), (prints_to, 1), (prints_to, 2)):
                os.dup2(ours, standard)
            self._control.close()
            for descriptor in (lifeline, prints_to, report):
                os.close(descriptor)
            for other in (*self._running.values(), *self._ended.values()):
                other.close()
            return announces
        for descriptor in (lifeline, prints_to, announces):
            os.close(descriptor)
        if pid is None:  # whoever asked reads the end of the report
            os.close(report)
            return None
        forked = _Forked(pid, os.pidfd_open(pid), socket.socket(fileno=report))
        self._running[forked.pidfd] = forked
        self._poll.register(forked.pidfd, select.POLLIN)
        _say(forked, pid)
        return None

    def _report_end(self, pidfd: int) -> None:
        forked = self._running.pop(pidfd)
        self._poll.unregister(pidfd)
        how = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)
        assert how is not None
        self._ended[forked.report.fileno()] = forked
        self._poll.register(forked.report, select.POLLIN)
        _say(forked, how.si_status if how.si_code == os.CLD_EXITED else -how.si_status)

    def _forget(self, report: int) -> None:
        forked = self._ended.pop(report)
        self._poll.unregister(report)
        os.waitpid(forked.pid, 0)
        forked.close()


def _can_fork() -> bool:
    """This process as it is, on this system."""
    try:
        os.close(os.pidfd_open(os.getpid()))
        opened = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if entry.is_symlink()]
    except (AttributeError, OSError):
        return False
    return may_fork() and not any(path.startswith("/dev/nvidia") for path in opened)


def _share_memory() -> None:
    """What is there now will not be collected: its pages stay shared with the children."""
    gc.collect()
    gc.freeze()


def _say(forked: _Forked, number: int) -> None:
    with suppress(OSError):  # whoever asked has left
        forked.report.sendall(b"%d\n" % number)


def _become(announces: int) -> list[str]:
    """A child, as if it had been started so."""
    role = msgspec.msgpack.decode(_read(int.from_bytes(_read(_LENGTH_BYTES), "big")), type=Role)
    os.environb.clear()
    os.environb.update(role.environment)
    os.environ[READY_FD] = str(announces)
    sys.path[:] = [role.folder if entry == os.getcwd() else entry for entry in sys.path]
    os.chdir(role.folder)
    seed_anew()
    with suppress(OSError, ValueError):
        _be_called([*sys.orig_argv[: sys.orig_argv.index(PRELOADED)], role.arguments[0]])
    return role.arguments


def _read(length: int) -> bytes:
    """From the lifeline, and not a byte more."""
    read = b""
    while len(read) < length:
        if not (more := os.read(0, length - len(read))):
            os._exit(0)  # nobody wants it any more
        read += more
    return read


def _be_called(command: list[str]) -> None:
    """Have ps and the like show that command line. What there was bounds its length."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b") ")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    line = b"\0".join(map(os.fsencode, command))[: end - begin - 1]
    if begin:
        ctypes.memmove(begin, line.ljust(end - begin, b"\0"), end - begin)
