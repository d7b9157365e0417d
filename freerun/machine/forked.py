"""A forkserver and its workers, as the process that uses them sees them: start the one, fork the others, ask them, end
them and whatever they started. `forkserver.py` is their side."""

import asyncio
import contextlib
import os
import signal
import socket
from asyncio.subprocess import DEVNULL, PIPE
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, Self, TypeVar

import msgspec

from freerun.core import FreerunError
from freerun.core.resolve import IMPORT_PATH, import_path
from freerun.machine.forkserver import FORK, ORDER, WAS_ALIVE, Loaded
from freerun.machine.frames import HEADER_BYTES, MARK_BYTES, unframed
from freerun.machine.processes import ChildProcess, describe_exit, pipe_reader
from freerun.machine.stopped import StopWatch, is_stopped

T = TypeVar("T")
START_TIMEOUT_S = 120.0
"""Code that imports torch from a cold disk needs a while; what hangs while it is imported must not hang us."""
END_TIMEOUT_S = 0.5
"""Killed processes close their pipes at once. A child that left our group and kept one open is not waited for."""
TAIL_BYTES = 4096
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Unless the user's environment says otherwise: a worker is one of many, and a process with threads cannot fork."""
MAX_FORKSERVER_DEATHS = 3
"""How many forkservers in a row may die while forking a worker."""


class Log(Protocol):
    """Takes what processes print."""

    def write(self, printed: bytes, /) -> object: ...


@dataclass(frozen=True)
class Program:
    """Which forkserver to start, and what messages call it."""

    name: str
    """What the process is called: `judge`."""
    module: str
    what: str
    """The argument that says which code."""
    called: str
    """`the judge math`."""
    parts: str
    """What it loads: `the judges`."""
    refusal: type[FreerunError]
    """What is raised when the code cannot be loaded."""
    memory_bytes: int = 0
    """That a worker may have beside what is loaded; 0 for any amount."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Unless the user's own says otherwise."""

    def refuse(self, said: str, detail: str = "") -> FreerunError:
        line, _, rest = said.partition("\n")
        return self.refusal(f"{self.called} cannot be loaded: {line}", rest or detail)


class Died(Exception):
    """A worker's process has ended."""

    def __init__(self, how: str, last_words: str, with_forkserver: bool = False) -> None:
        super().__init__(how, last_words, with_forkserver)
        self.how = how
        """`was killed by SIGKILL`."""
        self.last_words = last_words
        self.with_forkserver = with_forkserver
        """It ended with its forkserver, whatever it was doing."""


class KilledEarly(Exception):
    """Somebody killed a process while it loaded the user's code: another one may be spared."""

    def __init__(self, refusal: FreerunError) -> None:
        super().__init__(refusal)
        self.refusal = refusal
        """What to raise when none is."""


class ForeignReply(Exception):
    """A process that the user's code forked answered in its place. The worker is ended."""


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

    async def message(self, kind: type[T]) -> T:
        header = await self.reader.readexactly(HEADER_BYTES)
        return unframed(await self.reader.readexactly(int.from_bytes(header, "big")), kind)

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


class Printed:
    """What a process prints: its last words, and all of it in the log. Read always, so that a full pipe blocks
    nobody."""

    def __init__(self, reader: asyncio.StreamReader, log: Log | None) -> None:
        self._tail = bytearray()
        self._reading = asyncio.create_task(self._read(reader, log))

    async def last_words(self) -> str:
        """Waits for what is still in the pipe, though not for somebody who keeps it open."""
        await asyncio.wait({self._reading}, timeout=END_TIMEOUT_S)
        self._reading.cancel()
        return self._tail.decode(errors="replace").strip()

    async def _read(self, reader: asyncio.StreamReader, log: Log | None) -> None:
        while chunk := await reader.read(65536):
            self._tail = (self._tail + chunk)[-TAIL_BYTES:]
            if log is not None:
                with contextlib.suppress(OSError):  # a full disk is no reason to stop
                    log.write(chunk)


class ForkServer:
    """Consumes orders to fork and to end. Waits for the server's reply to each; unblocked by it, or by its death."""

    def __init__(self, program: Program, child: ChildProcess, connection: Connection, log: Log | None) -> None:
        assert child.process.stderr is not None
        self.program = program
        self._child = child
        self._connection = connection
        self._log = log
        self._printed = Printed(child.process.stderr, log)
        self._unanswered: deque[asyncio.Future[int]] = deque()
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, program: Program, log: Log | None) -> Self:
        """Returns when the user's code is loaded; raises the program's refusal when it cannot be."""
        ours, theirs = socket.socketpair()
        connection = await Connection.over(ours)
        defaults = ONE_THREAD | dict(program.environment)
        with theirs:
            child = await ChildProcess.start(
                *(program.name, program.module, str(theirs.fileno()), program.what, str(program.memory_bytes)),
                environment={name: value for name, value in defaults.items() if name not in os.environ}
                | {IMPORT_PATH: import_path()},
                stdin=DEVNULL,  # the socket is its lifeline: it must have no thread that could wait for another
                stderr=PIPE,
                pass_fds=[theirs.fileno()],
            )
        forkserver = cls(program, child, connection, log)
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
                loaded = await self._connection.message(Loaded)
        except TimeoutError:
            raise self.program.refuse(f"not after {START_TIMEOUT_S:g} s") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            code = await self._child.process.wait()
            refused = self.program.refuse(f"its process {describe_exit(code)}", await self._printed.last_words())
            raise (KilledEarly(refused) if code == -signal.SIGKILL else refused) from None
        if loaded.error:
            raise self.program.refuse(loaded.error)

    @property
    def alive(self) -> bool:
        return self._reading is not None and not self._reading.done()

    async def fork(self, kind: type["W"]) -> "W":
        """A new worker, ready to work. ConnectionError when the forkserver is dead."""
        ours, theirs = socket.socketpair()
        printed, prints = os.pipe()
        reader, _ = await pipe_reader(printed)
        worker = kind(self, await Connection.over(ours), Printed(reader, self._log))
        try:
            forked = self._order(FORK, theirs.fileno(), prints)
        finally:
            theirs.close()
            os.close(prints)
        try:
            await worker.begin(forked)
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
            raise ConnectionError(f"the forkserver of {self.program.called} is dead")
        try:
            socket.send_fds(self._connection.socket, [ORDER.pack(order)], list(descriptors))
        except OSError as error:  # it has just died, and its socket is closed: `alive` is told a moment later
            raise ConnectionError(f"the forkserver of {self.program.called} is dead") from error
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
                    reply.set_exception(ConnectionError(f"the forkserver of {self.program.called} is dead"))
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


class ForkedWorker:
    """Consumes framed requests, produces replies, one at a time. Waits for the process; unblocked by its reply, by
    the deadline, or by its end, after either of which it is of no more use: `end` it."""

    def __init__(self, forkserver: ForkServer, connection: Connection, printed: Printed) -> None:
        self._forkserver = forkserver
        self._connection = connection
        self._printed = printed
        self._pid: int | None = None
        self._exit_code: int | None = None
        self.asked = 0
        """Requests so far."""
        self.about = ""
        """What it says of the code it has loaded. Known when it has begun."""

    async def begin(self, forked: asyncio.Future[int]) -> None:
        """Returns when it is ready to work. ConnectionError when the forkserver died meanwhile, and it with it."""
        program = self._forkserver.program
        self._pid = await forked
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                with self._killed_if_stopped():
                    loaded = await self._connection.message(Loaded)
        except TimeoutError:
            raise program.refuse(f"not after {START_TIMEOUT_S:g} s") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            died = await self.death()
            if not self._forkserver.alive:
                raise ConnectionError(died.how) from None
            refused = program.refuse(f"its worker {died.how}", died.last_words)
            raise (KilledEarly(refused) if self._exit_code == -signal.SIGKILL else refused) from None
        if loaded.error:
            raise program.refuse(loaded.error)
        self.about = loaded.about

    @property
    def pid(self) -> int | None:
        """None when it is dead."""
        return self._pid

    @property
    def alive(self) -> bool:
        return self._pid is not None and not self._connection.reader.at_eof()

    async def ask(self, request: bytes, kind: type[T], timeout_s: float) -> T:
        """Its reply. Raises TimeoutError, Died or ForeignReply, and has then ended it."""
        self.asked += 1
        mark = os.urandom(MARK_BYTES)
        self._connection.writer.write(mark + request)  # into a dead worker's socket too: what it means, the reply tells
        try:
            async with asyncio.timeout(timeout_s):
                with self._killed_if_stopped():
                    if await self._connection.mark() == mark:
                        return await self._connection.message(kind)
        except (msgspec.MsgspecError, ValueError):
            pass
        except TimeoutError:
            stopped = self._pid is not None and is_stopped(self._pid)
            await self.end()
            if stopped:
                raise Died("was stopped, and killed", "") from None
            if self._exit_code is not None:  # it was dead: a child that it forked kept the socket open
                raise await self.death() from None
            raise
        except (asyncio.IncompleteReadError, ConnectionError):
            raise await self.death() from None
        await self.end()
        raise ForeignReply

    @contextlib.contextmanager
    def _killed_if_stopped(self) -> Iterator[None]:
        """Before its deadline, which counts what the user's code does."""
        if self._pid is None:
            yield
            return
        watch = StopWatch(self._pid)
        try:
            yield
        finally:
            watch.cancel()

    async def death(self) -> Died:
        """How it ended: ask when its socket is closed."""
        await self.end(dying=True)
        last_words = await self._printed.last_words()
        if self._exit_code is not None:
            return Died(describe_exit(self._exit_code), last_words)
        if self._forkserver.alive:
            return Died("closed its connection to us, and was killed", last_words)
        return Died("ended with its forkserver", last_words, with_forkserver=True)

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


W = TypeVar("W", bound=ForkedWorker)


class Forks(Generic[W]):
    """Workers of one program, as many as are asked for. A forkserver that dies is replaced, and so is what is killed
    before it is ready."""

    def __init__(self, program: Program, kind: type[W], log: Log | None) -> None:
        self._program = program
        self._kind = kind
        self._log = log
        self._forkserver: ForkServer | None = None
        self._starting = asyncio.Lock()

    async def forkserver(self) -> ForkServer:
        """Started first if it is not running."""
        async with self._starting:
            if self._forkserver is None or not self._forkserver.alive:
                await self.end()
                self._forkserver = await self._started()
            return self._forkserver

    async def _started(self) -> ForkServer:
        for _ in range(MAX_FORKSERVER_DEATHS):
            try:
                return await ForkServer.start(self._program, self._log)
            except KilledEarly as killed:
                refused = killed.refusal
        raise refused

    async def fork(self) -> W:
        deaths, parts = MAX_FORKSERVER_DEATHS, self._program.parts
        refused = self._program.refusal(
            f"no worker can be forked: the process that loads {parts} died {deaths} times in a row"
        )
        for _ in range(MAX_FORKSERVER_DEATHS):
            forkserver = await self.forkserver()
            try:
                return await forkserver.fork(self._kind)
            except ConnectionError:
                continue
            except KilledEarly as killed:
                refused = killed.refusal
        raise refused

    async def end(self) -> None:
        if self._forkserver is not None:
            await self._forkserver.end()
