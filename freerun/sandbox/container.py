"""One container as the judge outside sees it: start it, have it run something, end it and everything in it."""

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from freerun.core import RewardError
from freerun.sandbox import bubblewrap
from freerun.sandbox.base import Backend, Ending, Limits
from freerun.sandbox.cgroups import Group
from freerun.sandbox.inside.forkserver import KILL
from freerun.sandbox.usage import Meter, children, descendants, usage_below
from freerun.sandbox.view import DEVICES, ENVIRONMENT, FOLDERS, HERE, boot, forkserver, view

START_TIMEOUT_S = 30.0
KILL_TIMEOUT_S = 5.0
"""A run that was told to end has ended by then, or its container is ended."""
PERIOD_MS = 20
"""How often a run is looked at. A program writes to fresh memory at some GB/s: it may be past its limit by 100 MB."""
_CAP_SYS_ADMIN = 1 << 21
_UNUSED_USERS = range(61184, 65520)
"""Systemd's dynamic users: nothing on a disk belongs to any of them."""


class ContainerError(RewardError):
    """The container did not start, or is gone. `str(error)` says why in one line."""


class Container:
    """Consumes one run at a time and produces its report. Waits for the run's end; unblocked by that, by its own
    end, and by the run having used what it may, whereupon it is killed. `nested`: good for more than one run."""

    def __init__(self, backend: Backend, *, nested: bool = True) -> None:
        """Starts it and does not wait: `ready` does. By a thread that outlives it: bubblewrap ends with its parent
        thread."""
        self._user = _claim_user() if _is_mighty() else None
        run_as = self._user.number if self._user else None
        self._group = Group.make()
        self._control, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with inside:
                command = _command(backend, inside.fileno(), run_as, nested)
                self._process = _start(self._group.entered(command) if self._group else command, inside.fileno())
        except ContainerError:
            self._control.close()
            self._leave()
            raise
        self.nested = False
        self._meter: Meter | None = None
        self._runs = 0

    def ready(self) -> None:
        if self._meter is not None:
            return
        self._control.settimeout(START_TIMEOUT_S)
        try:
            hello = self._control.recv(4096)
        except OSError as error:
            raise ContainerError(f"no word from it: {error}") from None
        if not hello:
            _, words = self._process.communicate(timeout=KILL_TIMEOUT_S)
            raise ContainerError(words.decode(errors="replace").strip().rpartition("\n")[2] or "it ended at once")
        self._control.setblocking(True)
        self.nested = json.loads(hello)["nested"]
        inside = list(descendants(self._process.pid))
        if not inside or not usage_below(self._process.pid).memory_bytes:
            raise ContainerError("its processes cannot be watched: this kernel has no /proc/PID/task/PID/children")
        with suppress(OSError):  # should the machine run out of memory, a run is to go, and not the trainer
            Path(f"/proc/{inside[-1]}/oom_score_adj").write_text("1000")
        top = inside[-1] if self.nested else self._process.pid  # the forkserver, which has no children yet
        self._meter = Meter(top, self._group)

    def run(self, files: list[int], limits: Limits, *, tests: bool, reserves_memory: bool = False) -> "Report":
        self.ready()
        assert self._meter is not None
        self._meter.begin()
        self._runs += 1
        rules = {
            "cpu_s": ceil(limits.cpu_s) + 1,  # by the kernel, of each process; all together by us
            "memory_bytes": limits.memory_mb << 20,
            "reserves_memory": reserves_memory,
            "processes": limits.processes,
            "file_bytes": limits.file_mb << 20,
        }
        try:
            order = {"run": self._runs, "tests": tests, "rules": rules}
            socket.send_fds(self._control, [json.dumps(order).encode()], files)
            cause = self._watch(limits, self._meter)
            if cause is not None and not self.nested:
                self.end()  # it may have stopped the forkserver, which could not kill it
                return Report({}, cause, died=True)
            reply = self._control.recv(1 << 16)
            used_s = self._meter.cpu_s()
        except OSError as error:
            raise ContainerError(f"the sandbox broke down: {error}") from None
        said = json.loads(reply) if reply else {}
        if reply and said.pop("run", None) != self._runs:
            raise ContainerError("the sandbox broke down: it reports another run")
        if cause is None and used_s > limits.cpu_s and self.nested:
            cause = Ending.CPU
        return Report({**said, "cpu_s": max(said.get("cpu_s", 0.0), used_s)}, cause, died=not reply)

    def _watch(self, limits: Limits, meter: Meter) -> Ending | None:
        """Until there is a report; why the run was killed, if it was."""
        deadline = time.monotonic() + limits.wall_s
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        while not poll.poll(PERIOD_MS):
            if (cause := _excess(meter, limits, deadline)) is not None:
                if self.nested:
                    self._control.send(KILL)
                    if not poll.poll(KILL_TIMEOUT_S * 1000):
                        raise ContainerError("the sandbox broke down: a run could not be killed")
                return cause
        return None

    def end(self) -> None:
        """Returns when no process of it is left. Harmless when called again."""
        self._control.close()
        # Its one child is process 1 of the container: when it ends so does everything inside, and then its parent.
        for pid in children(self._process.pid) or [self._process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            self._process.wait(KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stderr is not None
        self._process.stderr.close()
        self._leave()

    def _leave(self) -> None:
        if self._group is not None:
            self._group.remove()
        if self._user is not None:
            self._user.claim.close()


def _excess(meter: Meter, limits: Limits, deadline: float) -> Ending | None:
    used = meter.read()
    if used.memory_bytes > limits.memory_mb << 20 and meter.exact_memory() > limits.memory_mb << 20:
        return Ending.MEMORY
    if used.cpu_s > limits.cpu_s:
        return Ending.CPU
    return Ending.WALL if time.monotonic() > deadline else None


class User(NamedTuple):
    number: int
    claim: socket.socket


def _claim_user() -> User:
    """One that no other container runs as: the kernel counts the processes of a user, wherever they are."""
    for place in range(len(_UNUSED_USERS)):
        number = _UNUSED_USERS[(os.getpid() + place) % len(_UNUSED_USERS)]
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0freerun-user-{number}")  # free again when we end, however we do
            return User(number, claim)
        except OSError:
            claim.close()
    raise ContainerError("all users that programs could run as are taken")


class Report:
    """What a run left: how its program ended, and what it used."""

    def __init__(self, said: dict[str, Any], cause: Ending | None, *, died: bool) -> None:
        if "error" in said:
            raise ContainerError(f"the sandbox cannot be locked: {said['error']}")
        self.died = died
        """With the whole container, which only a program without a pid namespace of its own can bring about."""
        status = said.get("program")
        self.exit_code = None if status is None else os.waitstatus_to_exitcode(status)
        self.cpu_s = float(said.get("cpu_s", 0.0))
        self.ending = cause or self._ending()

    def _ending(self) -> Ending:
        match self.exit_code:
            case None if self.died:
                return Ending.SIGNAL
            case None:
                return Ending.EXITED
            case code if code == -signal.SIGXCPU:
                return Ending.CPU
            case code if code == -signal.SIGXFSZ:
                return Ending.OUTPUT
            case code:
                return Ending.SIGNAL if code < 0 else Ending.EXITED


def _start(command: list[str], control: int) -> subprocess.Popen[bytes]:
    nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
    try:
        return subprocess.Popen(
            command, stdin=nothing, stdout=nothing, stderr=pipe, env=ENVIRONMENT, cwd="/", pass_fds=(control,)
        )
    except OSError as error:
        raise ContainerError(f"{command[0]} cannot be started: {error.strerror}") from None


def _command(backend: Backend, control: int, run_as: int | None, nested: bool) -> list[str]:
    if backend is Backend.BUBBLEWRAP:
        if (bwrap := shutil.which("bwrap")) is None:
            raise ContainerError("it is not installed")
        return bubblewrap.command(bwrap, control, run_as, nested=nested)
    seen = view()
    plan = {
        **{"binds": seen.binds, "links": seen.links, "devices": DEVICES, "folders": FOLDERS},
        **{"user_namespace": run_as is None, "control": control, "argv": forkserver(control, run_as)},
    }
    return boot("native", str(HERE), json.dumps(plan))


def _is_mighty() -> bool:
    """Root, and not only in name: then a user namespace is not needed, and programs run as nobody in particular."""
    if os.geteuid() != 0:
        return False
    with open("/proc/self/status") as file:
        mask = next(line.split()[1] for line in file if line.startswith("CapEff:"))
    return bool(int(mask, 16) & _CAP_SYS_ADMIN)
