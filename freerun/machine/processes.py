"""The processes of a run: started, watched, and ended with it, however it ends."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from freerun.core import FreerunError, ProcessDied, errors

_END_S = 2.0
"""How long a process may take to end before it is killed."""
_ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1", "OMP_WAIT_POLICY": "PASSIVE"}
"""The last: threads that spin while they wait take the cores from the other processes."""

_OUR_ERROR = re.compile(r"freerun\.core\.errors\.\w+: (.*)")
"""The last line of a traceback, where it is one of ours: that line says all."""


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


@dataclass
class Child:
    name: str
    process: asyncio.subprocess.Process
    log: Path


class Processes:
    """An async context manager; leaving it ends every process that it started."""

    def __init__(self, module: str, logs: Path) -> None:
        """Each is `python -m MODULE KIND SETTINGS`."""
        self._module = module
        self._logs = logs
        self._children: list[Child] = []

    async def __aenter__(self) -> "Processes":
        return self

    async def start(
        self, name: str, kind: str, settings: Any, threads: int, environment: Mapping[str, str] = MappingProxyType({})
    ) -> str:
        """Start a process and wait until it says where it can be reached, or what keeps it from starting, which is
        raised. Cancelled or failed, nothing is left."""
        read_fd, write_fd = os.pipe()
        log = self._logs / f"{name}.log"
        try:
            with log.open("ab") as output:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", self._module, kind, msgspec.json.encode(settings).decode()),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    pass_fds=(write_fd,),
                    start_new_session=True,  # a Ctrl-C in the terminal is for the controller alone
                    env=os.environ
                    | _ENVIRONMENT
                    | dict(environment)
                    | {"FREERUN_READY_FD": str(write_fd), "OMP_NUM_THREADS": str(threads)},
                )
        finally:
            os.close(write_fd)
        child = Child(name, process, log)
        self._children.append(child)
        where = await _read_all(read_fd)
        if not where or where.startswith("{"):
            await process.wait()
            raise msgspec.json.decode(where, type=Refusal).error() if where else self._died(child)
        return where

    async def watch(self) -> None:
        """Never returns: raises as soon as one of the processes has ended. Of several at once, one that was killed, or
        the first that was started: others may have ended because it did."""
        waits = {asyncio.create_task(child.process.wait()): child for child in self._children}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        ended = [child for wait, child in waits.items() if wait in done]
        raise self._died(min(ended, key=lambda child: (child.process.returncode or 0) >= 0))

    async def __aexit__(self, *_: object) -> None:
        """Ask each to end, then insist."""
        for insist in (signal.SIGTERM, signal.SIGKILL):
            for child in self._children:
                if child.process.returncode is None:
                    with suppress(ProcessLookupError):
                        os.killpg(child.process.pid, insist)
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.gather(*(child.process.wait() for child in self._children)), _END_S)
                return

    def _died(self, child: Child) -> ProcessDied:
        tail = child.log.read_text(errors="replace").strip().splitlines()[-30:]
        how = describe_exit(child.process.returncode or 0)
        if tail and (ours := _OUR_ERROR.fullmatch(tail[-1])):
            return ProcessDied(f"the {child.name} process {how}: {ours[1]}")
        return ProcessDied(f"the {child.name} process {how}; its log is {child.log}", "\n".join(tail))


def describe_exit(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


async def start_apart(
    module: str, kind: str, settings: Any, log: Path, environment: Mapping[str, str]
) -> asyncio.subprocess.Process:
    """`python -m MODULE KIND SETTINGS`, for benchmarks: its lines come to us, its complaints go to `log`. It should end
    when its standard input closes."""
    with log.open("wb") as errors:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, kind, msgspec.json.encode(settings).decode()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # a Ctrl-C in the terminal is for us alone
            env=os.environ | _ENVIRONMENT | dict(environment),
        )


async def end_apart(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()


async def _read_all(fd: int) -> str:
    """What the child writes before it closes its end; empty if it ended without a word."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb"))
    try:
        return (await reader.read()).decode()
    finally:
        transport.close()
