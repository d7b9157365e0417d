"""ForkServer and workers as the service sees them: start the one, fork the others, ask them, end them and their
children."""

import asyncio
import contextlib
import os
import socket
from asyncio.subprocess import DEVNULL, PIPE
from collections import deque
from typing import BinaryIO, Self

import msgspec

from freerun.core import RewardError
from freerun.core.resolve import IMPORT_PATH, import_path
from freerun.machine.host import memory_bytes
from freerun.machine.processes import ChildProcess, describe_exit, pipe_reader
from freerun.rewards.base import JudgeReason, Verdict
from freerun.rewards.protocol import FORK, HEADER_BYTES, MARK_BYTES, ORDER, SEES_SAMPLES, WAS_ALIVE, unframed
from freerun.rewards.spec import JudgeSpec

START_TIMEOUT_S = 120.0
"""A judge that imports torch from a cold disk needs a while; one that hangs while it is imported must not hang us."""
END_TIMEOUT_S = 0.5
"""Killed processes close their pipes at once. A child that left our group and kept one open is not waited for."""
LEAST_MEMORY = 1 << 30
TAIL_BYTES = 4096
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Unless the user's environment says otherwise: a worker is one of many, and a process with threads cannot fork."""


class Connection:
    """One socket: a reader that awaits, and the socket itself to send descriptors through."""

    def __init__(self, socket: socket.socket, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.socket = socket
        self.reader = reader
        self.writer = writer

    @classmethod
    async def over(cls, socket: socket.socket) -> Self:
        try:
            return cls(socket, *await asyncio.open_connection(sock=socket))
        except BaseException:
            socket.close()
            raise

    async def mark(self) -> bytes:
        return await self.reader.readexactly(MARK_BYTES)

    async def verdict(self) -> Verdict:
        header = await self.reader.readexactly(HEADER_BYTES)
        return unframed(await self.reader.readexactly(int.from_bytes(header, "big")), Verdict)

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


class Printed:
    """What a process prints: its last words, and all of it in the log. Read always, so that a full pipe blocks
    nobody."""

    def __init__(self, reader: asyncio.StreamReader, log: BinaryIO | None) -> None:
        self._tail = bytearray()
        self._reading = asyncio.create_task(self._read(reader, log))

    async def last_words(self) -> str:
        """Waits for what is still in the pipe, though not for somebody who keeps it open."""
        await asyncio.wait({self._reading}, timeout=END_TIMEOUT_S)
        self._reading.cancel()
        return self._tail.decode(errors="replace").strip()

    async def _read(self, reader: asyncio.StreamReader, log: BinaryIO | None) -> None:
        while chunk := await reader.read(65536):
            self._tail = (self._tail + chunk)[-TAIL_BYTES:]
            if log is not None:
                with contextlib.suppress(OSError):  # a full disk is no reason to stop judging
                    log.write(chunk)


class ForkServer:
    """Consumes orders to fork and to end. Waits for the server's reply to each; unblocked by it, or by its death."""

    def __init__(self, judge: str, child: ChildProcess, connection: Connection, log: BinaryIO | None) -> None:
        assert child.process.stderr is not None
        self._judge = judge
        self._child = child
        self._connection = connection
        self._log = log
        self._printed = Printed(child.process.stderr, log)
        self._unanswered: deque[asyncio.Future[int]] = deque()
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, parts: list[JudgeSpec], workers: int, log: BinaryIO | None) -> Self:
        """Returns when the judges are loaded; RewardError when they cannot be. `workers` share the machine's memory."""
        ours, theirs = socket.socketpair()
        connection = await Connection.over(ours)
        with theirs:
            child = await ChildProcess.start(
                *("judge", "freerun.rewards.forkserver", str(theirs.fileno()), msgspec.json.encode(parts).decode()),
                str(memory_each(workers)),
                environment={name: value for name, value in ONE_THREAD.items() if name not in os.environ}
                | {IMPORT_PATH: import_path()},
                stdin=DEVNULL,  # the socket is its lifeline: it must have no thread that could wait for another
                stderr=PIPE,
                pass_fds=[theirs.fileno()],
            )
        forkserver = cls(" + ".join(part.name for part in parts), child, connection, log)
        try:
            await forkserver._loaded()
        except BaseException:
            await forkserver.end()
            raise
        forkserver._reading = asyncio.create_task(forkserver._read_replies())
        return forkserver

    async def _loaded(self) -> None:
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                check_loaded(self._judge, await self._connection.verdict())
        except TimeoutError:
            raise RewardError(f"the judge {self._judge} cannot be loaded: not after {START_TIMEOUT_S:g} s") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            died = f"its process {describe_exit(await self._child.process.wait())}"
            last_words = await self._printed.last_words()
            raise RewardError(f"the judge {self._judge} cannot be loaded: {died}", last_words) from None

    @property
    def alive(self) -> bool:
        return self._reading is not None and not self._reading.done()

    async def fork(self) -> "JudgeWorker":
        """A new worker, ready to judge. ConnectionError when the forkserver is dead."""
        ours, theirs = socket.socketpair()
        printed, prints = os.pipe()
        reader, _ = await pipe_reader(printed)
        worker = JudgeWorker(self, await Connection.over(ours), Printed(reader, self._log))
        try:
            forked = self._order(FORK, theirs.fileno(), prints)
        finally:
            theirs.close()
            os.close(prints)
        try:
            await worker.begin(self._judge, forked)
        except BaseException:
            await worker.end()
            raise
        return worker

    async def end_worker(self, pid: int, dying: bool) -> int | None:
        """Kill it and whatever it started. Its exit code if it was dead already, else None."""
        code = await self._order(-pid if dying else pid)
        return None if code == WAS_ALIVE else code

    def _order(self, order: int, *descriptors: int) -> asyncio.Future[int]:
        """Sent at once, so that replies come in the order of the calls, cancelled ones included."""
        reply: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if not self.alive:
            raise ConnectionError(f"the forkserver of {self._judge} is dead")
        socket.send_fds(self._connection.socket, [ORDER.pack(order)], list(descriptors))
        self._unanswered.append(reply)
        return reply

    async def _read_replies(self) -> None:
        try:
            while True:
                (value,) = ORDER.unpack(await self._connection.reader.readexactly(ORDER.size))
                reply = self._unanswered.popleft()
                if not reply.done():  # else whoever asked has left
                    reply.set_result(value)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            for reply in self._unanswered:
                if not reply.done():
                    reply.set_exception(ConnectionError(f"the forkserver of {self._judge} is dead"))
            self._unanswered.clear()

    async def end(self) -> None:
        """Have it end its workers and whatever they started; kill it if it does not. On Linux, workers die with it."""
        await self._child.end(self._hang_up, 2 * END_TIMEOUT_S if self.alive else 0.0)
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})
        await self._connection.close()
        await self._printed.last_words()

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):  # it has
            self._connection.socket.shutdown(socket.SHUT_WR)


class JudgeWorker:
    """Consumes framed requests, produces verdicts, one at a time. Waits for the process; unblocked by its verdict, by
    the deadline, or by its end, after either of which it is of no more use: `end` it."""

    def __init__(self, forkserver: ForkServer, connection: Connection, printed: Printed) -> None:
        self._forkserver = forkserver
        self._connection = connection
        self._printed = printed
        self._pid: int | None = None
        self._exit_code: int | None = None
        self.judgements = 0
        self.sees_samples = False
        """Whether one of its judges asks for the whole sample. Known when it has begun."""

    async def begin(self, judge: str, forked: asyncio.Future[int]) -> None:
        """Returns when it is ready to judge. ConnectionError when the forkserver died meanwhile, and it with it."""
        self._pid = await forked
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                loaded = await self._connection.verdict()
            check_loaded(judge, loaded)
            self.sees_samples = loaded.detail == SEES_SAMPLES
        except TimeoutError:
            raise RewardError(f"the judge {judge} cannot be loaded: not after {START_TIMEOUT_S:g} s") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            verdict = await self._crash()
            line, _, rest = verdict.detail.partition("\n")
            if not self._forkserver.alive:
                raise ConnectionError(line) from None
            raise RewardError(f"the judge {judge} cannot be loaded: {line}", rest) from None

    @property
    def alive(self) -> bool:
        return self._pid is not None and not self._connection.reader.at_eof()

    async def judge(self, request: bytes, timeout_s: float) -> Verdict | None:
        """None if somebody else answered: a process that the judge forked before, and that is of no use any more."""
        self.judgements += 1
        mark = os.urandom(MARK_BYTES)
        self._connection.writer.write(mark + request)  # into a dead worker's socket too: what it means, the reply tells
        try:
            async with asyncio.timeout(timeout_s):
                if await self._connection.mark() == mark:
                    return await self._connection.verdict()
            await self.end()
            return None
        except (msgspec.MsgspecError, ValueError):
            await self.end()
            return None
        except TimeoutError:
            await self.end()
            if self._exit_code is not None:  # it was dead: a child that it forked kept the socket open
                return await self._crash()
            return Verdict(None, JudgeReason.TIMEOUT, f"no verdict after {timeout_s:g} s: killed")
        except (asyncio.IncompleteReadError, ConnectionError):
            return await self._crash()

    async def _crash(self) -> Verdict:
        await self.end(dying=True)
        last_words = await self._printed.last_words()
        code = self._exit_code
        died = f"the reward worker {describe_exit(code) if code is not None else 'ended with its forkserver'}"
        return Verdict(None, JudgeReason.CRASH, f"{died}\n{last_words}".strip())

    async def end(self, dying: bool = False) -> None:
        """Kill the process and whatever it started; one that is `dying` by itself is given the time to. Harmless when
        it is dead already, and when called again."""
        pid, self._pid = self._pid, None
        if pid is not None:
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(3 * END_TIMEOUT_S):
                    self._exit_code = await self._forkserver.end_worker(pid, dying)
        await self._connection.close()
        await self._printed.last_words()


def memory_each(workers: int) -> int:
    """Bytes that a worker may have beside what is loaded: together no more than half of the machine's, unless that is
    too little to work with."""
    return max(memory_bytes() // 2 // workers, LEAST_MEMORY)


def check_loaded(judge: str, ready: Verdict) -> None:
    if ready.reason is not JudgeReason.OK:
        line, _, rest = ready.detail.partition("\n")
        raise RewardError(f"the judge {judge} cannot be loaded: {line}", rest)
