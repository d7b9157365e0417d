"""A pool of worker processes that run the same judges. A judgement that misses its deadline is killed."""

import asyncio
import math
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, BinaryIO, Self

from freerun.core import FreerunError
from freerun.core.lanes import Lanes
from freerun.core.reports import JudgeLoad, Span
from freerun.machine.forked import Forks
from freerun.machine.host import memory_bytes
from freerun.rewards.base import JudgeReason, Verdict
from freerun.rewards.growth import LOOK_S, BusyTime, Growth, Look
from freerun.rewards.judges import REMOTE
from freerun.rewards.process import JudgeWorker, program
from freerun.rewards.spec import JudgeSpec

JUDGEMENTS_PER_WORKER = 1000
"""After this many, a worker is replaced by a new fork, which takes milliseconds and frees what its libraries leaked."""
MAX_FOREIGN_REPLIES = 3
"""How many workers in a row may have their reply to a request written by another process, such as a child that the
judge forked, or end with their forkserver. That is not the request's fault, so a new worker judges it."""
_NO_REPLY = "processes that the judge forked reply in its place, or its workers end with their forkserver"
_MOST_LANES = 16
FIRST_PAUSE_S = 0.2
"""The pause before a remote judge is asked again; it doubles each time. Only the judgement waits, not a worker."""


@dataclass(slots=True)
class _PendingRequest:
    request: bytes
    verdict: asyncio.Future[Verdict]
    asked_s: float


class Pool:
    """Judges requests, `workers` at a time.

    Consumes calls of `judge`, first come first served. Produces a verdict for each. Waits for a free worker, then at
    most `timeout_s` for its verdict. Unblocked by the verdict, by the deadline (the worker's process group is killed
    and a new worker forked), by the worker's death, and by closing. Cancelling a call does not affect other calls: its
    judgement is skipped if it has not begun, and otherwise left to end or to time out.

    A judgement is tried again, up to `retries` times, if its worker died or a remote judge failed. One that timed out
    is not: the same input would only hang again.

    It may grow: see `Growth`. Nothing makes it smaller, for an idle worker costs next to nothing.

    Invariant: a worker has at most one request, and only one task, `_serve`, talks to it and ends it.
    """

    def __init__(
        self,
        judges: list[JudgeSpec],
        *,
        workers: int,
        timeout_s: float,
        retries: int,
        most: int = 0,
        log: BinaryIO | None = None,
    ) -> None:
        """With `workers` to begin with, and `most` where it may grow."""
        self._workers = workers
        self._growth = Growth(workers, max(most, workers), memory_bytes() // 2)
        self._busy, self._judged, self._queued_s, self._cpu_share = BusyTime(), 0, 0.0, math.nan
        self._at_work: dict[asyncio.Task[None], JudgeWorker] = {}
        self._failed_since = False
        """Whether a judgement has failed since the last look: more of them at once might be the reason."""
        self._timeout_s = timeout_s
        self._retries = retries
        remote = any(judge.name in REMOTE for judge in judges)
        self._retried = {JudgeReason.CRASH, JudgeReason.ERROR} if remote else {JudgeReason.CRASH}
        self._queue: asyncio.Queue[_PendingRequest] = asyncio.Queue()
        self._pending: set[asyncio.Future[Verdict]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._forks = Forks(program(judges, workers), JudgeWorker, log)
        self._lanes = judging_lanes(judges)
        self._stopped_by: BaseException | None = None
        self.sees_samples = False
        """Whether one of the judges asks for the whole sample. Known when it is open."""

    async def __aenter__(self) -> Self:
        """Return when the judges are loaded and every worker is ready; raise if a worker cannot start."""
        forks = [asyncio.create_task(self._forks.fork()) for _ in range(self._workers)]
        try:
            workers = await asyncio.gather(*forks)
        except BaseException:
            for fork in forks:
                fork.cancel()
            for forked in await asyncio.gather(*forks, return_exceptions=True):
                if isinstance(forked, JudgeWorker):
                    await forked.end()
            await self._forks.end()
            raise
        self.sees_samples = any(worker.sees_samples for worker in workers)
        for worker in workers:
            self._begin(self._serve(worker))
        self._begin(self._look())
        return self

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(self._on_task_done)
        self._tasks.append(task)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(FreerunError("the judge service is closed"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._forks.end()

    @property
    def waiting(self) -> int:
        """The number of requests that no worker has taken yet."""
        return self._queue.qsize()

    @property
    def load(self) -> JudgeLoad:
        spent = self._judged, self._busy.seconds, self._queued_s
        return JudgeLoad(self._workers, self.waiting, *spent, self._cpu_share)

    def spans(self, every: bool = False) -> list[Span]:
        """When its workers were busy, since it was last asked. What may still become longer is left for the next time,
        unless `every` one is wanted."""
        return self._lanes.take(every)

    async def judge_all(self, requests: Sequence[bytes]) -> list[Verdict]:
        return await asyncio.gather(*map(self.judge, requests))

    async def judge(self, request: bytes) -> Verdict:
        """The verdict on a framed request, after retries. Raises the error that the pool was stopped with, if any."""
        pause_s = FIRST_PAUSE_S
        for _ in range(self._retries):
            verdict = await self._judge_once(request)
            if verdict.reason not in self._retried:
                return verdict
            if verdict.reason is JudgeReason.ERROR:
                await asyncio.sleep(pause_s)
                pause_s *= 2
        return await self._judge_once(request)

    def stop(self, error: BaseException) -> None:
        """Raise the error from all calls, running and future ones. If the pool is already stopped, it keeps its first
        error."""
        self._stopped_by = self._stopped_by or error
        for verdict in list(self._pending):
            if not verdict.done():
                verdict.set_exception(copy_error(self._stopped_by))

    async def _judge_once(self, request: bytes) -> Verdict:
        if self._stopped_by is not None:
            raise copy_error(self._stopped_by)
        verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._pending.add(verdict)
        verdict.add_done_callback(self._pending.discard)
        self._queue.put_nowait(_PendingRequest(request, verdict, time.monotonic()))
        return await verdict

    async def _serve(self, worker: JudgeWorker) -> None:
        """Judge requests with one worker. Replace it if it hangs or dies, and before its memory grows."""
        task = asyncio.current_task()
        assert task is not None
        try:
            while True:
                self._at_work[task] = worker
                pending = await self._queue.get()
                if pending.verdict.done():  # the call was cancelled
                    continue
                if not worker.alive or worker.asked >= JUDGEMENTS_PER_WORKER:
                    worker = await self._replace(worker)
                self._queued_s += time.monotonic() - pending.asked_s
                with self._lanes.busy(), self._counted():
                    for _ in range(MAX_FOREIGN_REPLIES):
                        if (verdict := await worker.judge(pending.request, self._timeout_s)) is not None:
                            break
                        worker = await self._replace(worker)
                    else:
                        verdict = Verdict(None, JudgeReason.CRASH, _NO_REPLY)
                if not pending.verdict.done():
                    pending.verdict.set_result(verdict)
                self._failed_since |= verdict.reward is None
                if verdict.reason in (JudgeReason.TIMEOUT, JudgeReason.CRASH):
                    worker = await self._replace(worker)
        finally:
            await worker.end()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._busy.change(1)
        try:
            yield
        finally:
            self._busy.change(-1)
            self._judged += 1

    async def _look(self) -> None:
        """See now and then what the workers do, and have more of them where that helps."""
        look = Look()
        while True:
            await asyncio.sleep(LOOK_S)
            failed, self._failed_since = self._failed_since, False
            pids = [pid for worker in self._at_work.values() if (pid := worker.pid)]
            spent = look.spent(pids, self._busy.seconds)
            if spent is None or not spent.busy_s:
                continue
            self._cpu_share = spent.cpu_share
            if not failed:
                await self._grow(self._growth.workers(self._workers, self.waiting, spent))

    async def _grow(self, workers: int) -> None:
        while self._workers < workers:
            try:
                worker = await self._forks.fork()
            except (FreerunError, OSError):  # those that are there go on
                return
            self._workers += 1
            self._begin(self._serve(worker))

    async def _replace(self, worker: JudgeWorker) -> JudgeWorker:
        await worker.end()
        return await self._forks.fork()

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        """Stop the pool if a task failed, such as when the judges no longer load. Cancelled tasks have not failed."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.stop(error)


def judging_lanes(judges: Sequence[JudgeSpec]) -> Lanes:
    """What the timeline shows of a pool."""
    names = ", ".join(judge.name.rpartition("/")[2] for judge in judges)
    return Lanes("rewards", names or "judge", "judge", "judgements", _MOST_LANES)


def copy_error(error: BaseException) -> BaseException:
    """Copy one of our errors: a single exception raised by many callers would collect all their tracebacks."""
    return type(error)(error.message, error.detail) if isinstance(error, FreerunError) else error
