"""Children of ours that are forked from a process which has imported what they need (`preloaded.py`), as the process
that wants them sees them.

There is one such process for each program and number of threads, from when it is first expected; it is there for all
runs of this process, and ends with it. When it is killed its children go on, and the next one is forked from another.
"""

import asyncio
import atexit
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import BinaryIO

from freerun.machine.preloaded import MAY_NOT_FORK, ORDER, PRELOADED, Role
from freerun.machine.stopped import StopWatch

NOBODY_KNOWS = 255
"""The exit code of a process whose end nobody has seen."""
ENVIRONMENT: Mapping[str, str] = MappingProxyType(
    {"TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1", "OMP_WAIT_POLICY": "PASSIVE"}
)
"""What our children have besides. The last: threads that spin while they wait take the cores from other processes."""
THREADS = "OMP_NUM_THREADS"
_NO_THREADS = {"OPENBLAS_NUM_THREADS": "1"}
"""NumPy's library starts its threads when it is imported."""
_READ_ON_IMPORT = (
    *("PYTHON", "LD_", "OMP_", "MKL_", "KMP_", "GOMP_", "TORCH", "PYTORCH", "TRITON_", "HF_", "TRANSFORMERS_"),
)
"""How variables begin that are read when Python starts or a library is imported, and not later."""
_TRIES = 2
"""One may just have ended, having had nothing to do."""


class CannotFork(Exception):
    """A child has to be started the usual way."""


class Preloaded:
    """A process to fork children from."""

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, PRELOADED, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=environment,
            )
        atexit.register(self.end)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def may_not_fork(self) -> bool:
        return self._process.poll() == MAY_NOT_FORK

    async def fork(self, role: Role, prints_to: int, announces: int) -> "ForkedProcess":
        """As soon as everything is imported."""
        pipe, here = self._order(prints_to, announces)
        try:
            stdin, _ = await asyncio.get_running_loop().connect_write_pipe(asyncio.Protocol, pipe)
            reader, writer = await asyncio.open_connection(sock=here)
        except BaseException:
            pipe.close()
            here.close()
            raise
        watch = StopWatch(self.pid, lambda: self.has_ended)
        try:
            stdin.write(role.message())
            if pid := await reader.readline():
                return ForkedProcess(int(pid), stdin, reader, writer, watch)
            raise CannotFork
        except BaseException:  # if there is a child, it reads the end of its lifeline
            stdin.close()
            writer.close()
            watch.cancel()
            raise

    def _order(self, prints_to: int, announces: int) -> tuple[BinaryIO, socket.socket]:
        """Our ends of a child's lifeline and of its report."""
        read, write = os.pipe()
        here, there = socket.socketpair()
        pipe = os.fdopen(write, "wb", buffering=0)
        try:
            socket.send_fds(self._control, [ORDER], [read, prints_to, announces, there.fileno()])
        except OSError:
            pipe.close()
            here.close()
            raise CannotFork from None
        finally:
            os.close(read)
            there.close()
        return pipe, here

    def end(self) -> None:
        """Its children go on."""
        self._control.close()
        self._process.kill()
        self._process.wait()
        atexit.unregister(self.end)


class ForkedProcess:
    """What asyncio's `Process` is of our own children, as far as we use it."""

    stdout: asyncio.StreamReader | None = None
    stderr: asyncio.StreamReader | None = None

    def __init__(
        self,
        pid: int,
        stdin: asyncio.WriteTransport,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        watch: StopWatch,
    ) -> None:
        """`watch`: of its parent, which tells how it ends."""
        self.pid, self.stdin = pid, stdin
        self.returncode: int | None = None
        self._ending = asyncio.create_task(self._end(reader, writer, watch))

    async def wait(self) -> int:
        return await asyncio.shield(self._ending)

    def send_signal(self, which: int) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, which)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def _end(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, watch: StopWatch) -> int:
        """Until we close the connection, nobody else gets the process id."""
        try:
            if code := await reader.readline():
                self.returncode = int(code)
            else:
                await _end_of(self.pid)
                self.returncode = NOBODY_KNOWS
            return self.returncode
        finally:
            watch.cancel()
            writer.close()
            self.stdin.close()


async def _end_of(pid: int) -> None:
    """When its parent, which would have told us, has ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


_preloaded: dict[object, Preloaded] = {}
"""By what makes one as good as another."""


def expect_children(module: str, threads: int) -> None:
    """Begin to import what they need."""
    _at_hand(module, str(threads))


async def fork_child(module: str, threads: str, role: Role, prints_to: int, announces: int) -> ForkedProcess:
    for _ in range(_TRIES):
        preloaded = _at_hand(module, threads)
        if preloaded is None or preloaded.may_not_fork:
            break
        with suppress(CannotFork):
            return await preloaded.fork(role, prints_to, announces)
    raise CannotFork


def _at_hand(module: str, threads: str) -> Preloaded | None:
    """None where processes like that cannot be."""
    if sys.platform != "linux":
        return None
    environment = {**os.environ, **ENVIRONMENT, THREADS: threads}
    kept = frozenset(item for item in environment.items() if item[0].startswith(_READ_ON_IMPORT))
    alike = module, kept
    there = _preloaded.get(alike)
    if there is None or (there.has_ended and not there.may_not_fork):
        there = _preloaded[alike] = Preloaded(module, {**environment, **_NO_THREADS})
    return there
