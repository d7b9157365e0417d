"""Processes that we start: watched, and ended with us, however we end. `parent.py` is their side."""

import asyncio
import os
import re
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, Self

import msgspec

from freerun.core import ProcessDied, ProcessKilled
from freerun.core.clock import Clock
from freerun.machine.forking import ENVIRONMENT, NOBODY_KNOWS, THREADS, CannotFork, ForkedProcess, fork_child
from freerun.machine.machines import Machine, this_machine
from freerun.machine.parent import READY_FD, Refusal
from freerun.machine.preloaded import Role
from freerun.machine.stopped import StopWatch

_END_S = 2.0
"""How long a process may take to end before it is killed, and then to be gone."""
_TAIL_LINES = 30
_NONE: Mapping[str, str] = MappingProxyType({})
_OUR_ERROR = re.compile(r"freerun\.core\.errors\.\w+: (.*)")
"""The last line of a traceback, where it is one of ours: that line says all."""

_AN_ERROR = re.compile(r"[\w.]+(Error|Exception|Interrupt|Exit)\b")
"""The last line of any traceback."""


@dataclass
class ChildProcess:
    """`python -m MODULE ARGUMENTS` in a session of its own, so that a Ctrl-C in the terminal is for us alone. Its
    standard input is a pipe that closes when we end: see `parent.py`. One that is stopped for too long is killed:
    `stopped.py`. One that needs torch is forked from a process that has imported it: `forking.py`."""

    name: str
    process: Process | ForkedProcess
    log: Path | None
    _ready_fd: int | None
    _log_begins: int = 0
    """Where: before that is what an earlier process of the name has printed."""

    @classmethod
    async def start(
        cls,
        name: str,
        module: str,
        *arguments: str,
        environment: Mapping[str, str] = _NONE,
        log: Path | None = None,
        stdin: int = PIPE,
        stdout: int | None = None,
        stderr: int | None = None,
        pass_fds: Sequence[int] = (),
        announces: bool = False,
    ) -> Self:
        """`log` takes whatever is printed, but for a stream that is given. A process that `announces` says when it is
        `ready`."""
        log_begins = _size(log)
        ready_fd, write_fd = os.pipe() if announces else (None, None)
        theirs = {READY_FD: str(write_fd)} if announces else {}
        try:
            with (log or Path(os.devnull)).open("ab") as printed:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", module, *arguments),
                    stdin=stdin,
                    stdout=printed if stdout is None else stdout,
                    stderr=printed if stderr is None else stderr,
                    pass_fds=(*pass_fds, *(() if write_fd is None else (write_fd,))),
                    start_new_session=True,
                    env=os.environ | ENVIRONMENT | dict(environment) | theirs,
                )
        except BaseException:
            if ready_fd is not None:
                os.close(ready_fd)
            raise
        finally:
            if write_fd is not None:
                os.close(write_fd)
        StopWatch(process.pid, lambda: process.returncode is not None)
        return cls(name, process, log, ready_fd, log_begins)

    @classmethod
    async def fork(
        cls, name: str, module: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> Self:
        """The same by a fork, which is refused where that is not possible. It announces that it is ready."""
        log_begins = _size(log)
        ready_fd, write_fd = os.pipe()
        try:
            with log.open("ab") as printed:
                role = Role.of(arguments, os.environ | ENVIRONMENT | dict(environment))
                process = await fork_child(module, environment[THREADS], role, printed.fileno(), write_fd)
        except BaseException:
            os.close(ready_fd)
            raise
        finally:
            os.close(write_fd)
        StopWatch(process.pid, lambda: process.returncode is not None)
        return cls(name, process, log, ready_fd, log_begins)

    @classmethod
    async def start_part(
        cls,
        name: str,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        forks: bool,
    ) -> Self:
        """A process that announces that it is ready; by a fork if it `forks`, and that is possible."""
        if forks:
            with suppress(CannotFork):
                return await cls.fork(name, module, arguments, environment, log)
        return await cls.start(name, module, *arguments, environment=environment, log=log, announces=True)

    async def ready(self) -> str:
        """Wait until it says where it can be reached. What keeps it from that is raised."""
        assert self._ready_fd is not None
        said = await _read_all(self._ready_fd)
        if said and not said.startswith("{"):
            return said
        await self.process.wait()
        raise msgspec.json.decode(said, type=Refusal).error() if said else self.died()

    @property
    def returncode(self) -> int | None:
        return self.process.returncode

    async def wait(self) -> None:
        """Until it has ended."""
        await self.process.wait()

    def pulse(self) -> None:
        """Tell it that we are here."""
        if self.process.stdin is not None and not self.process.stdin.is_closing():
            self.process.stdin.write(b".")

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def close_lifeline(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    async def end(self, ask: Callable[[], object] | None = None, grace_s: float = _END_S) -> None:
        """Ask it to end, by `terminate` unless told otherwise; kill it, and its process group, if it has not after so
        long. One that the kernel cannot end is left to it."""
        if self.process.returncode is None:
            (ask or self.terminate)()
            if not await self._ended(grace_s):
                self._signal(signal.SIGKILL)
                await self._ended(_END_S)

    async def _ended(self, within_s: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), within_s)
        return self.process.returncode is not None

    def _signal(self, which: signal.Signals) -> None:
        if self.process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):  # it is gone; on macOS, only zombies are left
                os.killpg(self.process.pid, which)

    def died(self) -> ProcessDied:
        """The error to raise when it has ended too early."""
        return death(self.name, self.process.returncode or 0, self.log_tail(), self.log)

    def log_tail(self) -> str:
        text = self.log.read_bytes()[self._log_begins :].decode(errors="replace") if self.log else ""
        return "\n".join(text.strip().splitlines()[-_TAIL_LINES:])


class Child(Protocol):
    """A process that was started, on this machine or on another one."""

    name: str

    @property
    def returncode(self) -> int | None:
        """None while it runs."""
        ...

    async def ready(self) -> str:
        """Wait until it says where it can be reached. What keeps it from that is raised."""
        ...

    async def wait(self) -> None:
        """Until it has ended, or its machine is lost."""
        ...

    def died(self) -> ProcessDied:
        """The error to raise when it has ended too early."""
        ...

    async def end(self) -> None: ...


class Host(Protocol):
    """A machine, as something to start processes on."""

    machine: Machine
    clock: Clock
    scratch: str
    """A folder in that machine's shared memory, private to the run."""

    async def start(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        forks: bool = False,
    ) -> Child:
        """`log` is on the controller's machine, and follows what the process prints. `forks`: from a process that has
        imported what it needs, if possible."""
        ...

    async def free_port(self) -> int:
        """One of the machine's address that nobody listens on now."""
        ...


@dataclass
class LocalHost:
    """The machine that we are on."""

    scratch: str
    machine: Machine = field(default_factory=this_machine)
    clock: Clock = field(default_factory=Clock)

    async def start(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        forks: bool = False,
    ) -> Child:
        return await ChildProcess.start_part(name, module, arguments, environment, log, forks)

    async def free_port(self) -> int:
        with socket.create_server((self.machine.address, 0)) as probe:
            return int(probe.getsockname()[1])


class Processes:
    """The processes of a run. An async context manager; leaving it ends every process that it started."""

    def __init__(self, module: str, logs: Path, fork: bool = True) -> None:
        """Each is `python -m MODULE KIND SETTINGS`, or a fork of what `python -m MODULE` is when it is PRELOADED."""
        self._module, self._fork = module, fork
        self._logs = logs
        self._here = LocalHost("")
        self._children: list[Child] = []
        self._vital: list[Child] = []

    async def __aenter__(self) -> "Processes":
        return self

    async def start(
        self, name: str, kind: str, settings: Any, threads: int, environment: Mapping[str, str] = _NONE
    ) -> str:
        """Start a process on this machine that the run cannot go on without, and wait until it says where it can be
        reached, or what keeps it from starting, which is raised. Cancelled or failed, nothing is left."""
        return await (await self.begin(name, kind, settings, threads, environment)).ready()

    async def begin(
        self,
        name: str,
        kind: str,
        settings: Any,
        threads: int,
        environment: Mapping[str, str] = _NONE,
        host: Host | None = None,
        vital: bool = True,
        light: bool = False,
    ) -> Child:
        """Start a process, on this machine unless told otherwise, and do not wait for it. When one that is not `vital`
        ends, it is the caller's to see to it. One that is `light` needs nothing
        of what was imported for the others."""
        arguments = [kind, msgspec.json.encode(settings).decode()]
        environment, log = {**environment, THREADS: str(threads)}, self._logs / f"{name}.log"
        child = await (host or self._here).start(
            name, self._module, arguments, environment, log, self._fork and not light
        )
        self._children.append(child)
        if vital:
            self._vital.append(child)
        return child

    async def watch(self) -> None:
        """Never returns: raises as soon as a process that the run needs has ended."""
        if not self._vital:
            await asyncio.Future()
        raise await first_death(self._vital)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(child.end() for child in self._children))


async def first_death(children: Sequence[Child]) -> ProcessDied:
    """Wait until one has ended. If several have, it is that of one that was killed, or else of the first: others may
    have ended because it did."""
    waits = {asyncio.create_task(child.wait()): child for child in children}
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    ended = [child for wait, child in waits.items() if wait in done]
    return min(ended, key=lambda child: (child.returncode or 0) >= 0).died()


def death(name: str, code: int, tail: str, log: Path | None) -> ProcessDied:
    """The error that says how a process ended; `tail` is the end of its log."""
    if tail and (ours := _OUR_ERROR.fullmatch(tail.splitlines()[-1])):
        return ProcessDied(f"the {name} process {describe_exit(code)}: {ours[1]}")
    last = tail.splitlines()[-1] if tail else ""
    why = f" with {last[:200]}" if _AN_ERROR.match(last) else ""
    kind = ProcessKilled if code == -signal.SIGKILL else ProcessDied
    return kind(f"the {name} process {describe_exit(code)}{why}; its log is {log}", tail)


def _size(log: Path | None) -> int:
    return log.stat().st_size if log and log.exists() else 0


def describe_exit(code: int) -> str:
    """What to say behind the name of a process that ended so, such as `was killed by SIGKILL`."""
    if code == NOBODY_KNOWS:
        return "ended"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


async def pipe_reader(fd: int) -> tuple[asyncio.StreamReader, asyncio.ReadTransport]:
    """What others write to the pipe; the descriptor is closed with the transport, or when they have closed theirs."""
    reader, pipe = asyncio.StreamReader(), os.fdopen(fd, "rb", buffering=0)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
    return reader, transport


async def _read_all(fd: int) -> str:
    """What is written to the pipe before it is closed; empty if the writer ended without a word."""
    reader, transport = await pipe_reader(fd)
    try:
        return (await reader.read()).decode()
    finally:
        transport.close()
