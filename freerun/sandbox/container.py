"""One container, seen from outside: start it, run a program in it, end it and everything in it."""

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
from freerun.machine.descendants import children, descendants
from freerun.sandbox import bubblewrap
from freerun.sandbox.base import Backend, Ending, Limits
from freerun.sandbox.cgroups import ControlGroup
from freerun.sandbox.filesystem import DEVICES, FOLDERS, HERE, view
from freerun.sandbox.inside.forkserver import KILL
from freerun.sandbox.launch import ENVIRONMENT, boot_command, forkserver_command
from freerun.sandbox.usage import Meter, usage_below

START_TIMEOUT_S = 30.0
KILL_TIMEOUT_S = 5.0
"""If a run has not ended this long after it was killed, its container is ended."""
CHECK_PERIOD_MS = 20
"""How often a run's usage is checked. A program fills new memory at some GB/s: it may pass its limit by 100 MB."""
_CAP_SYS_ADMIN = 1 << 21
_UNUSED_USERS = range(61184, 65520)
"""The user ids that systemd reserves for dynamic users: no file on a disk belongs to any of them."""


class ContainerError(RewardError):
    """The container did not start, or has ended. `str(error)` says why in one line."""


class Container:
    """Consumes one run at a time and produces its report. Waits for the run to end. Unblocked by that, by the
    container's own end, and by a limit: a run that exceeds one is killed.

    `nested` says whether each run gets namespaces of its own inside the container's. Only then can the container serve
    more than one run; `ready` sets it to what the machine allows.
    """

    def __init__(self, backend: Backend, *, nested: bool = True) -> None:
        """Start the container without waiting for it; `ready` waits. Call this in a thread that outlives the container,
        because bubblewrap ends when the thread that started it does."""
        self._user = _claim_user() if _is_privileged() else None
        run_as = self._user.id if self._user else None
        self._group = ControlGroup.make()
        self._control, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with inside:
                command = _command(backend, inside.fileno(), run_as, nested)
                self._process = _start(self._group.wrap(command) if self._group else command, inside.fileno())
        except ContainerError:
            self._control.close()
            self._release()
            raise
        self.nested = False
        self._meter: Meter | None = None
        self._runs = 0

    def ready(self) -> None:
        """Wait until the forkserver is up; ContainerError if it does not come up."""
        if self._meter is not None:
            return
        self._control.settimeout(START_TIMEOUT_S)
        try:
            hello = self._control.recv(4096)
        except OSError as error:
            raise ContainerError(f"it does not respond: {error}") from None
        if not hello:
            _, stderr = self._process.communicate(timeout=KILL_TIMEOUT_S)
            raise ContainerError(stderr.decode(errors="replace").strip().rpartition("\n")[2] or "it ended at once")
        self._control.setblocking(True)
        self.nested = json.loads(hello)["nested"]
        inside = list(descendants(self._process.pid))
        if not inside or not usage_below(self._process.pid).memory_bytes:
            raise ContainerError("its processes cannot be watched: this kernel has no /proc/PID/task/PID/children")
        with suppress(OSError):  # if the machine runs out of memory, the kernel should kill a run, not the trainer
            Path(f"/proc/{inside[-1]}/oom_score_adj").write_text("1000")
        top = inside[-1] if self.nested else self._process.pid  # the forkserver, which has no children yet
        self._meter = Meter(top, self._group)

    def run(self, files: list[int], limits: Limits, *, tests: bool, reserves_memory: bool = False) -> "RunReport":
        self.ready()
        assert self._meter is not None
        self._meter.begin()
        self._runs += 1
        kernel_limits = {
            "cpu_s": ceil(limits.cpu_s) + 1,  # the kernel limits each process; we limit all of them together
            "memory_bytes": limits.memory_mb << 20,
            "reserves_memory": reserves_memory,
            "processes": limits.processes,
            "file_bytes": limits.file_mb << 20,
        }
        try:
            order = {"run": self._runs, "tests": tests, "limits": kernel_limits}
            socket.send_fds(self._control, [json.dumps(order).encode()], files)
            exceeded = self._wait(limits, self._meter)
            if exceeded is not None and not self.nested:
                self.end()  # the run may have stopped the forkserver, which then cannot kill it
                return RunReport({}, exceeded, died=True)
            reply = self._control.recv(1 << 16)
            used_s = self._meter.cpu_s()
        except OSError as error:
            raise ContainerError(f"the sandbox broke down: {error}") from None
        report = json.loads(reply) if reply else {}
        if reply and report.pop("run", None) != self._runs:
            raise ContainerError("the sandbox broke down: it reports another run")
        if exceeded is None and used_s > limits.cpu_s and self.nested:
            exceeded = Ending.CPU
        return RunReport({**report, "cpu_s": max(report.get("cpu_s", 0.0), used_s)}, exceeded, died=not reply)

    def _wait(self, limits: Limits, meter: Meter) -> Ending | None:
        """Wait for the run's report. Kill the run and return the limit, if it exceeds one."""
        deadline = time.monotonic() + limits.wall_s
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        while not poll.poll(CHECK_PERIOD_MS):
            if (exceeded := _exceeded_limit(meter, limits, deadline)) is not None:
                if self.nested:
                    self._control.send(KILL)
                    if not poll.poll(KILL_TIMEOUT_S * 1000):
                        raise ContainerError("the sandbox broke down: a run could not be killed")
                return exceeded
        return None

    def end(self) -> None:
        """End the container and return when none of its processes is left. Calling it again does nothing."""
        self._control.close()
        # The only child is process 1 of the container: when it ends, everything inside ends, and then its parent.
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
        self._release()

    def _release(self) -> None:
        if self._group is not None:
            self._group.remove()
        if self._user is not None:
            self._user.claim.close()


def _exceeded_limit(meter: Meter, limits: Limits, deadline: float) -> Ending | None:
    used = meter.read()
    if used.memory_bytes > limits.memory_mb << 20 and meter.exact_memory() > limits.memory_mb << 20:
        return Ending.MEMORY
    if used.cpu_s > limits.cpu_s:
        return Ending.CPU
    return Ending.WALL if time.monotonic() > deadline else None


class ClaimedUser(NamedTuple):
    id: int
    claim: socket.socket
    """An abstract socket with the id in its name: while it is open, no other container uses the id."""


def _claim_user() -> ClaimedUser:
    """Claim a user that no other container runs as: the kernel counts a user's processes across all containers."""
    for offset in range(len(_UNUSED_USERS)):
        user = _UNUSED_USERS[(os.getpid() + offset) % len(_UNUSED_USERS)]
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0freerun-user-{user}")  # the kernel frees it when we end, however we end
            return ClaimedUser(user, claim)
        except OSError:
            claim.close()
    raise ContainerError("all users that programs could run as are taken")


class RunReport:
    """How a run's program ended, and how much processor time it used."""

    def __init__(self, report: dict[str, Any], exceeded: Ending | None, *, died: bool) -> None:
        """`report` is what the run's init process wrote, `exceeded` the limit for which the run was killed."""
        if "error" in report:
            raise ContainerError(f"the sandbox cannot be locked down: {report['error']}")
        self.died = died
        """Whether the whole container died. Only a program without a pid namespace of its own can cause that."""
        status = report.get("program")
        self.exit_code = None if status is None else os.waitstatus_to_exitcode(status)
        self.cpu_s = float(report.get("cpu_s", 0.0))
        self.ending = exceeded or self._ending()

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
    shown = view()
    plan = {
        **{"binds": shown.binds, "links": shown.links, "devices": DEVICES, "folders": FOLDERS},
        **{"user_namespace": run_as is None, "control": control, "argv": forkserver_command(control, run_as)},
    }
    return boot_command("namespaces", str(HERE), json.dumps(plan))


def _is_privileged() -> bool:
    """Whether we are root and have root's capabilities. Then no user namespace is needed, and programs run as an unused
    user."""
    if os.geteuid() != 0:
        return False
    with open("/proc/self/status") as file:
        mask = next(line.split()[1] for line in file if line.startswith("CapEff:"))
    return bool(int(mask, 16) & _CAP_SYS_ADMIN)
