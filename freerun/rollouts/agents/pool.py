"""Runs agents, each session in a process that can be killed."""

import asyncio
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from freerun.core import ConfigError, FreerunError, Task
from freerun.core.lanes import Lanes
from freerun.core.reports import Span
from freerun.machine.forked import Died, ForeignReply, ForkedWorker, Forks, Program
from freerun.machine.frames import frame
from freerun.rollouts.agents.log import AgentLog
from freerun.rollouts.agents.protocol import Left, SessionRequest
from freerun.rollouts.agents.spec import Access, AgentResult, AgentSpec, SessionFailure

SESSIONS_PER_WORKER = 1000
"""After this many, a worker is replaced by a new fork, which frees what its libraries leaked."""
_MOST_LANES = 32
CLEAN_S = 1.0
"""For a worker to end what a session left behind. One that takes longer is killed; the session's result stands."""
MODULE = "freerun.rollouts.agents.forkserver"
_ENVIRONMENT = {"OPENAI_AGENTS_DISABLE_TRACING": "1"}
"""openai-agents would send every trace to its maker, from a thread that outlives the session."""


class AgentWorker(ForkedWorker):
    async def run(self, request: bytes, deadline_s: float) -> AgentResult:
        try:
            return await self.ask(request, AgentResult, deadline_s)
        except TimeoutError:
            said = f"not done after {deadline_s:g} s: killed"
            return AgentResult(failure=SessionFailure.DEADLINE, detail=said)
        except Died as died:
            said = f"its process {died.how}{last_line(died.last_words)}"
            return AgentResult(failure=SessionFailure.CRASH, detail=said)
        except ForeignReply:
            said = "a process that the agent forked replied in its place"
            return AgentResult(failure=SessionFailure.CRASH, detail=said)

    async def is_clean(self) -> bool:
        """Whether nothing is left of the session that has just given its result."""
        try:
            async with asyncio.timeout(CLEAN_S):
                return not (await self._connection.message(Left)).what
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError, msgspec.MsgspecError, ValueError):
            return False


class AgentPool:
    """Runs sessions of one agent, `max_sessions` at a time.

    Consumes calls of `run`, first come first served. Produces a result for each, whatever the agent does. Waits for one
    of the places, then for the agent. Unblocked by its result, by its deadline (its process is killed, and all that it
    started), by its process's death, and by closing. Cancelling a call ends its session.

    Invariant: a worker has one session at a time, and is used again only if nothing is left of the one before. No
    process of an agent's is alive once its result is there, save a clean worker.
    """

    def __init__(
        self,
        spec: AgentSpec,
        max_sessions: int,
        log: Path | None = None,
        sessions_per_worker: int = SESSIONS_PER_WORKER,
    ) -> None:
        self._sessions_per_worker = sessions_per_worker
        self._log = None if log is None else AgentLog(log)
        self._forks = Forks(program(spec), AgentWorker, self._log)
        self._places = asyncio.Semaphore(max_sessions)
        self._idle: list[AgentWorker] = []
        self._sessions: set[asyncio.Task[AgentResult]] = set()
        self._lanes = Lanes("agents", "session", "session", "sessions", _MOST_LANES, gap_s=0.0)
        self._is_open = False
        self.waiting = 0
        """Calls of `run` that have no place yet."""

    def spans(self, every: bool = False) -> list[Span]:
        """The sessions that ended since it was last asked."""
        return self._lanes.take(every)

    @property
    def running(self) -> int:
        return len(self._sessions)

    async def __aenter__(self) -> Self:
        """Return when the agent's code is imported. ConfigError if that fails."""
        try:
            await self._forks.forkserver()
        except BaseException:
            await self._close()
            raise
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        for session in self._sessions:
            session.cancel()
        if self._sessions:
            await asyncio.wait(self._sessions)
        await asyncio.gather(*(worker.end() for worker in self._idle))
        self._idle.clear()
        await self._close()

    async def run(self, task: Task, access: Access, deadline_s: float) -> AgentResult:
        """The deadline counts from when the agent starts. Raises only when the pool is closed."""
        self.waiting += 1
        try:
            await self._places.acquire()
        finally:
            self.waiting -= 1
        if not self._is_open:
            self._places.release()
            raise FreerunError("the agents' processes are not running: the pool is closed")
        session = asyncio.create_task(self._session(frame(SessionRequest(task, access)), deadline_s, task.id))
        self._sessions.add(session)
        session.add_done_callback(self._on_session_done)
        try:
            return await asyncio.shield(session)
        except asyncio.CancelledError:
            if session.cancelled():  # by closing, not by our caller
                raise FreerunError("the agents' processes are not running: the pool is closed") from None
            session.cancel()
            await asyncio.wait({session})
            raise

    def _on_session_done(self, session: asyncio.Task[AgentResult]) -> None:
        """The place is free when its process is gone, or clean."""
        self._sessions.discard(session)
        self._places.release()

    async def _session(self, request: bytes, deadline_s: float, task: str) -> AgentResult:
        worker: AgentWorker | None = None
        try:
            worker = await self._worker()
            with self._lanes.busy(task=task):
                result = await worker.run(request, deadline_s)
            if worker.alive and await worker.is_clean() and worker.asked < self._sessions_per_worker:
                self._idle.append(worker)
                worker = None
            return result
        except FreerunError as error:  # no worker can be forked
            return AgentResult(failure=SessionFailure.CRASH, detail=str(error))
        finally:
            if worker is not None:
                await worker.end()

    async def _worker(self) -> AgentWorker:
        """The one that was used last, which is the warmest."""
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                return worker
            await worker.end()
        return await self._forks.fork()

    async def _close(self) -> None:
        await self._forks.end()
        if self._log is not None:
            self._log.close()


def program(spec: AgentSpec) -> Program:
    return Program(
        name="agent",
        module=MODULE,
        what=msgspec.json.encode(spec).decode(),
        called=spec.called,
        parts="the agent",
        refusal=ConfigError,
        environment=_ENVIRONMENT,
    )


def last_line(printed: str) -> str:
    """`: ` and what a process said last. After a crash in C, that is what it was, and the innermost line of Python."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    fatal = next((place for place, line in enumerate(lines) if line.startswith("Fatal Python error")), None)
    if fatal is not None:
        at = next((line for line in lines[fatal:] if line.startswith("File ")), "")
        return f": {lines[fatal]}{', ' + at if at else ''}"
    return f": {lines[-1][:500]}" if lines else ""
