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
from freerun.machine.machines import LOCAL, Machine, this_machine
from freerun.machine.parent import READY_FD, Refusal
from freerun.machine.spare import SPARE, Role
from freerun.machine.stopped import StopWatch

_END_S = 2.0
"""How long a process may take to end before it is killed, and then to be gone."""
_TAIL_LINES = 30
_SPARE_AFTER_S = 6.0
"""When a spare process is started: a run that has just begun needs the processor itself, and so does whatever has just
taken the last one."""
_NONE: Mapping[str, str] = MappingProxyType({})
_ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1", "OMP_WAIT_POLICY": "PASSIVE"}
"""The last: threads that spin while they wait take the cores from the other processes."""
_OUR_ERROR = re.compile(r"freerun\.core\.errors\.\w+: (.*)")
"""The last line of a traceback, where it is one of ours: that line says all."""

_AN_ERROR = re.compile(r"[\w.]+(Error|Exception|Interrupt|Exit)\b")
"""The last line of any traceback."""


@dataclass
class ChildProcess:
    """`python -m MODULE ARGUMENTS` in a session of its own, so that a Ctrl-C in the terminal is for us alone. Its
    standard input is a pipe that closes when we end: see `parent.py`. One that is stopped for too long is killed:
    `stopped.py`."""

    name: str
    process: Process
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
                    env=os.environ | _ENVIRONMENT | dict(environment) | theirs,
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

    def become(self, name: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """It is a spare: as if it had been started so."""
        assert self.process.stdin is not None
        self.name, self.log, self._log_begins = name, log, _size(log)
        self.process.stdin.write(Role(list(arguments), dict(environment), str(log.absolute())).line())

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
        self, name: str, module: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> Child:
        """`log` is on the controller's machine, and follows what the process prints."""
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
        self, name: str, module: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> Child:
        return await ChildProcess.start(name, module, *arguments, environment=environment, log=log, announces=True)

    async def free_port(self) -> int:
        with socket.create_server((self.machine.address, 0)) as probe:
            return int(probe.getsockname()[1])


class Processes:
    """The processes of a run. An async context manager; leaving it ends every process that it started."""

    def __init__(self, module: str, logs: Path) -> None:
        """Each is `python -m MODULE KIND SETTINGS`."""
        self._module = module
        self._logs = logs
        self._here = LocalHost("")
        self._children: list[Child] = []
        self._vital: list[Child] = []
        self._spare: tuple[ChildProcess, str] | None = None
        """With its number of threads."""
        self._taken, self._needed = asyncio.Event(), asyncio.Event()

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
    ) -> Child:
        """Start a process, on this machine unless told otherwise, and do not wait for it. When one that is not `vital`
        ends, it is the caller's to see to it. What is started again on this machine takes the spare process, if that is
        there."""
        arguments = [kind, msgspec.json.encode(settings).decode()]
        environment, log = {**environment, "OMP_NUM_THREADS": str(threads)}, self._logs / f"{name}.log"
        if again := any(child.name == name for child in self._children):
            self._needed.set()
        here = host is None or host.machine.name == LOCAL
        child: Child
        if again and here and (spare := self._take_spare(threads)):
            spare.become(name, arguments, environment, log)
            child = spare
        else:
            child = await (host or self._here).start(name, self._module, arguments, environment, log)
            self._children.append(child)
        if vital:
            self._vital.append(child)
        return child

    async def keep_spare(self, threads: int, after_s: float = _SPARE_AFTER_S, at_once: bool = False) -> None:
        """Have a process at hand that has imported everything, from when something was started again for the first
        time, or `at_once`: most runs need none. Never returns."""
        if not at_once:
            await self._needed.wait()
        while True:
            await asyncio.sleep(after_s)
            environment = {"OMP_NUM_THREADS": str(threads)}
            spare = await ChildProcess.start(SPARE, self._module, SPARE, environment=environment, announces=True)
            self._children.append(spare)
            self._spare = spare, str(threads)
            self._taken.clear()
            await self._taken.wait()

    def _take_spare(self, threads: int) -> ChildProcess | None:
        spare, self._spare = self._spare, None
        self._taken.set()
        return spare[0] if spare and spare[0].returncode is None and spare[1] == str(threads) else None

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
