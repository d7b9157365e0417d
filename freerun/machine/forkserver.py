"""The process that workers are forked from. `forked.py` is the other side; a room's own module says what is loaded
and what a worker does with it: `python -m MODULE CONTROL_FD WHAT MEMORY_BYTES [late]`.

It loads the user's code once and runs none of it, so that a worker is a fork: some milliseconds, where importing sympy
or an agent's SDK takes a second, and memory that is shared. A worker that hangs is then cheap to kill, and any worker
cheap to replace before what its libraries cache adds up.

First it says what was `Loaded`, or why that failed. After that it consumes orders and produces a reply for each, in
order, both one number. The order 0 comes with two file descriptors, a worker's socket and where it prints to, and is to
fork it; the reply is its process id. Any other order is the id of a worker to end, with all it started; the reply is
its exit code as `subprocess` writes it, or WAS_ALIVE. Minus the id is the same of a worker that has closed its socket:
it is about to die by itself, and its exit code is waited for. A worker's own first frame is `Loaded`, too.

Waits for the next order; unblocked, for good, by the end of its input or by its parent's death, and takes its workers
along. Ends workers on request because it is their parent: until it has waited for one, nobody else can have its process
id.

A process with threads must not fork. Where loading the code has started some (a GPU in use does), it starts itself
again, `late`: its workers then load the code for themselves, each as slowly as that is.
"""

import gc
import os
import random
import resource
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

from freerun.core import FreerunError
from freerun.core.traces import describe
from freerun.machine.descendants import children, descendants
from freerun.machine.frames import frame
from freerun.machine.parent import adopt_orphans, kill_with_parent

T = TypeVar("T")
ORDER = struct.Struct("!q")
FORK = 0
WAS_ALIVE = 1 << 20
"""Not an exit code."""
EXIT_TIMEOUT_S = 0.5
"""For a process that was killed, or is ending by itself, to be gone. One that the kernel cannot end (a dead file
server) is left to it."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """That the user's code is loaded, or why it could not be."""

    error: str = ""
    """Its first line says what is wrong."""
    about: str = ""
    """What the room wants to know of it."""


@dataclass(frozen=True)
class Job(Generic[T]):
    """What is loaded, and what a worker does with it."""

    module: str
    """That starts the forkserver."""
    what: str
    """The argument that says which code."""
    load: Callable[[], T]
    """May raise: whatever the user's code raises when it is imported."""
    about: Callable[[T], str]
    work: Callable[[T, BinaryIO, BinaryIO], None]
    """Serves requests with replies until their end."""


def main(job: Job[Any], control_fd: int, memory_bytes: int, late: bool) -> int:
    """`memory_bytes`: what a worker may have beside what is loaded; 0 for any amount."""
    kill_with_parent()
    control = socket.socket(fileno=control_fd)
    hide_standard_streams()
    loaded, said = (None, Loaded()) if late else load(job)
    if said.error:
        control.sendall(frame(said))
        return 1
    if not late and not may_fork():
        os.set_inheritable(control_fd, True)
        again = ["-m", job.module, str(control_fd), job.what, str(memory_bytes), "late"]
        os.execv(sys.executable, [sys.executable, *again])
    control.sendall(frame(said))
    gc.collect()
    gc.freeze()  # what is loaded will not be collected: pages stay shared with the workers
    adopt_orphans()
    kill_with_parent(False)  # but end with it, by the end of the input, and take all along that workers have started
    ForkServer(control, job, None if late else (loaded, said), memory_bytes).serve()
    return 0


def load(job: Job[T]) -> tuple[T | None, Loaded]:
    try:
        loaded = job.load()
        return loaded, Loaded(about=job.about(loaded))
    except FreerunError as error:
        return None, Loaded(str(error))
    except (Exception, SystemExit) as error:  # the user's file, being imported
        return None, Loaded(describe(error))


class ForkServer:
    def __init__(
        self, control: socket.socket, job: Job[Any], loaded: tuple[Any, Loaded] | None, memory_bytes: int
    ) -> None:
        self._control = control
        self._job = job
        self._loaded = loaded
        self._memory_bytes = memory_bytes
        self._workers: set[int] = set()
        self._started = set(children(os.getpid()))
        """What the user's code started when it was loaded."""

    def serve(self) -> None:
        while True:
            message, descriptors, _, _ = socket.recv_fds(self._control, ORDER.size, 2)
            if len(message) < ORDER.size:
                break
            (order,) = ORDER.unpack(message)
            reply = self._fork(*descriptors) if order == FORK else self._end(order)
            self._control.sendall(ORDER.pack(reply))
        for worker in list(self._workers):
            self._end(worker)
        self._started.clear()
        self._end_orphans()

    def _fork(self, connection: int, errors: int) -> int:
        worker = os.fork()
        if worker == 0:
            self._control.close()
            become_worker(connection, errors, self._job, self._loaded, self._memory_bytes)
        for descriptor in (connection, errors):
            os.close(descriptor)
        with suppress(OSError):  # both sides do it: whoever comes first, it is done when either goes on
            os.setpgid(worker, worker)
        self._workers.add(worker)
        return worker

    def _end(self, order: int) -> int:
        """Kill its process group, and what has left that: daemons are its children too, or ours when it is dead."""
        worker, dying = abs(order), order < 0
        if worker not in self._workers:
            return WAS_ALIVE
        code = exit_code(worker, EXIT_TIMEOUT_S if dying else 0.0)
        started = list(descendants(worker)) if code is None else []
        with suppress(ProcessLookupError, PermissionError):  # nobody left; on macOS, only zombies left
            os.killpg(worker, signal.SIGKILL)
        for process in started:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        if code is None:
            exit_code(worker, EXIT_TIMEOUT_S)
        self._workers.remove(worker)
        self._end_orphans()
        return WAS_ALIVE if code is None else code

    def _end_orphans(self) -> None:
        """Children of ours that we did not start: left by workers, or by what they left."""
        give_up_s = time.monotonic() + EXIT_TIMEOUT_S
        while orphans := set(children(os.getpid())) - self._workers - self._started:
            for orphan in orphans:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(orphan, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(orphan, os.WNOHANG)
            if time.monotonic() > give_up_s:
                return
            time.sleep(0.0005)


def exit_code(worker: int, timeout_s: float) -> int | None:
    """None when it is still alive after so long."""
    give_up_s = time.monotonic() + timeout_s
    while True:
        ended, status = os.waitpid(worker, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= give_up_s:
            return None
        time.sleep(0.0005)


def become_worker(
    connection: int, errors: int, job: Job[Any], loaded: tuple[Any, Loaded] | None, memory_bytes: int
) -> None:
    """In the child: work, and never return."""
    code = 1
    try:
        os.setpgid(0, 0)  # to be killed with all its children
        kill_with_parent()  # user code in a loop never sees the end of its input
        adopt_orphans()
        os.dup2(errors, 1)
        os.dup2(errors, 2)
        os.close(errors)
        seed_anew()
        nothing = os.open(os.devnull, os.O_RDWR)
        os.register_at_fork(
            after_in_child=lambda: os.dup2(nothing, connection)
        )  # no child speaks for us, or outlives us
        with open(connection, "rb", closefd=False) as requests, open(connection, "wb") as replies:
            subject, said = load(job) if loaded is None else loaded
            limit_memory(memory_bytes)
            replies.write(frame(said))
            replies.flush()
            if not said.error:
                job.work(subject, requests, replies)
                code = 0
    except BrokenPipeError:
        pass  # whoever asked has left
    finally:
        flush_standard_streams()
        os._exit(code)  # not the forkserver's exit handlers


def seed_anew() -> None:
    """Or all workers would draw the same numbers."""
    random.seed()
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()


def flush_standard_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # the user's code may have closed or replaced them
            stream.flush()


def hide_standard_streams() -> None:
    """Give the user's code an empty input, and the error stream to print to."""
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115


def may_fork() -> bool:
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return threading.active_count() == 1


def limit_memory(more_bytes: int) -> None:
    """A worker that leaks gets a MemoryError, and not the machine. What is loaded already does not count."""
    if more_bytes and sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[5])
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (pages * resource.getpagesize() + more_bytes, hard))
