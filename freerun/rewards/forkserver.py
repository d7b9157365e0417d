"""The process that workers are forked from: `python -m freerun.rewards.forkserver CONTROL_FD PARTS [late]`.

It loads the judges once and judges nothing itself, so that a worker is a fork: some milliseconds, where importing sympy
takes a second, and memory that is shared. A worker that hangs is then cheap to kill, and any worker cheap to replace
before what its libraries cache adds up.

Consumes orders (see `protocol.py`) and produces a reply for each. Waits for the next order; unblocked, for good, by the
end of its input or by its parent's death, and takes its workers along. Ends workers on request because it is their
parent: until it has waited for one, nobody else can have its process id.

A process with threads must not fork. Where loading the judges has started some (a GPU in use does), it starts itself
again, `late`: its workers then load the judges for themselves, each as slowly as that is.
"""

import gc
import os
import random
import resource
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from freerun.machine.parent import adopt_orphans, kill_with_parent
from freerun.rewards.base import JudgeReason, Verdict
from freerun.rewards.protocol import FORK, ORDER, SEES_SAMPLES, WAS_ALIVE, frame
from freerun.rewards.spec import JudgeSpec
from freerun.rewards.worker import Judges, judge_until_end, load, sees_samples
from freerun.sandbox.usage import children, descendants

EXIT_TIMEOUT_S = 0.5
"""For a process that was killed, or is ending by itself, to be gone. One that the kernel cannot end (a dead file
server) is left to it."""


def main(control_fd: int, encoded_parts: str, memory_bytes: int, late: bool) -> int:
    """`memory_bytes`: what a worker may have beside what is loaded; 0 for any amount."""
    kill_with_parent()
    control = socket.socket(fileno=control_fd)
    hide_standard_streams()
    parts = msgspec.json.decode(encoded_parts, type=list[JudgeSpec])
    judges: Judges | Verdict | None = None if late else load(parts)
    if isinstance(judges, Verdict):
        control.sendall(frame(judges))
        return 1
    if judges is not None and not may_fork():
        os.set_inheritable(control_fd, True)
        again = ["-m", "freerun.rewards.forkserver", str(control_fd), encoded_parts, str(memory_bytes), "late"]
        os.execv(sys.executable, [sys.executable, *again])
    control.sendall(frame(Verdict(None, JudgeReason.OK)))
    gc.collect()
    gc.freeze()  # what is loaded will not be collected: pages stay shared with the workers
    adopt_orphans()
    kill_with_parent(False)  # but end with it, by the end of the input, and take all along that judges have started
    ForkServer(control, parts, judges, memory_bytes).serve()
    return 0


class ForkServer:
    def __init__(
        self, control: socket.socket, parts: list[JudgeSpec], judges: Judges | None, memory_bytes: int
    ) -> None:
        self._control = control
        self._parts = parts
        self._judges = judges
        self._memory_bytes = memory_bytes
        self._workers: set[int] = set()
        self._loaded = set(children(os.getpid()))
        """What the judges started when they were loaded."""

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
        self._loaded.clear()
        self._end_orphans()

    def _fork(self, connection: int, errors: int) -> int:
        worker = os.fork()
        if worker == 0:
            self._control.close()
            become_worker(connection, errors, self._parts, self._judges, self._memory_bytes)
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
        while orphans := set(children(os.getpid())) - self._workers - self._loaded:
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
    connection: int, errors: int, parts: list[JudgeSpec], judges: Judges | None, memory_bytes: int
) -> None:
    """In the child: judge, and never return."""
    code = 1
    try:
        os.setpgid(0, 0)  # to be killed with all its children
        kill_with_parent()  # a judge in a loop never sees the end of its input
        adopt_orphans()
        os.dup2(errors, 1)
        os.dup2(errors, 2)
        os.close(errors)
        random.seed()
        nothing = os.open(os.devnull, os.O_RDWR)
        os.register_at_fork(
            after_in_child=lambda: os.dup2(nothing, connection)
        )  # no child speaks for us, or outlives us
        with open(connection, "rb", closefd=False) as requests, open(connection, "wb") as replies:
            loaded = load(parts) if judges is None else judges
            limit_memory(memory_bytes)
            replies.write(frame(loaded if isinstance(loaded, Verdict) else ready(loaded)))
            replies.flush()
            if not isinstance(loaded, Verdict):
                judge_until_end(requests, replies, loaded)
                code = 0
    except BrokenPipeError:
        pass  # the service has left
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)  # not the forkserver's exit handlers


def ready(judges: Judges) -> Verdict:
    return Verdict(None, JudgeReason.OK, SEES_SAMPLES if sees_samples(judges) else "")


def hide_standard_streams() -> None:
    """Give the judges an empty input, and the error stream to print to."""
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
    """A judge that leaks gets a MemoryError, and not the machine. What is loaded already does not count."""
    if more_bytes and sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[5])
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (pages * resource.getpagesize() + more_bytes, hard))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), "late" in sys.argv[4:]))
