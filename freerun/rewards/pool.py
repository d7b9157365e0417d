"""Workers that judge by the same parts, each judgement with a deadline that is kept by killing."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO, Self

from freerun.core import FreerunError, RewardError
from freerun.rewards.base import JudgeReason, Verdict
from freerun.rewards.judges import REMOTE
from freerun.rewards.process import ForkServer, JudgeWorker
from freerun.rewards.spec import JudgeSpec

JUDGEMENTS_A_WORKER = 1000
"""Then it is replaced by a fresh fork, which costs milliseconds: whatever its libraries cache or leak goes with it."""
STRANGERS = 3
"""Workers, one after another, in whose place somebody else answers the same request. It is no fault of the request's:
a new worker judges it."""
ZYGOTES = 3
"""That may die while a worker is being forked, one after another."""
FIRST_PAUSE_S = 0.2
"""Before a remote judge is asked again; then twice as long, and so on. Only the judgement waits, not a worker."""


@dataclass(slots=True)
class _Job:
    request: bytes
    answer: asyncio.Future[Verdict]


class Pool:
    """Judges requests, `workers` at a time.

    Consumes calls of `judge`, first come first served. Produces a verdict for each. Waits for a free worker, then at
    most `timeout_s` for its verdict. Unblocked by the verdict, by the deadline (the worker's process group is killed
    and a new worker forked), by the worker's death, and by closing. A cancelled call costs nobody else anything: a
    judgement not yet begun is skipped, one that runs is left to end or to time out.

    What may help is tried again, up to `retries` times: a judgement whose worker died, by another worker, and one that
    a remote judge failed. Not one that timed out: the same input would only hang again.

    Invariant: a worker has at most one request, and belongs to one keeper task, which alone talks to it and ends it.
    """

    def __init__(
        self, parts: list[JudgeSpec], *, workers: int, timeout_s: float, retries: int, log: BinaryIO | None = None
    ) -> None:
        self._parts = parts
        self._workers = workers
        self._timeout_s = timeout_s
        self._retries = retries
        self._log = log
        remote = any(part.name in REMOTE for part in parts)
        self._try_again = {JudgeReason.CRASH, JudgeReason.ERROR} if remote else {JudgeReason.CRASH}
        self._jobs: asyncio.Queue[_Job] = asyncio.Queue()
        self._unanswered: set[asyncio.Future[Verdict]] = set()
        self._keepers: list[asyncio.Task[None]] = []
        self._forkserver: ForkServer | None = None
        self._starting = asyncio.Lock()
        self._over: BaseException | None = None
        self.sees_samples = False
        """Whether one of the judges asks for the whole sample. Known when it is open."""

    async def __aenter__(self) -> Self:
        """Returns when the judges are loaded and every worker is ready; raises what hinders one."""
        forks = [asyncio.create_task(self._fork()) for _ in range(self._workers)]
        try:
            workers = await asyncio.gather(*forks)
        except BaseException:
            for fork in forks:
                fork.cancel()
            for forked in await asyncio.gather(*forks, return_exceptions=True):
                if isinstance(forked, JudgeWorker):
                    await forked.end()
            await self._end_zygote()
            raise
        self.sees_samples = any(worker.sees_samples for worker in workers)
        self._keepers = [asyncio.create_task(self._keep(worker)) for worker in workers]
        for keeper in self._keepers:
            keeper.add_done_callback(self._on_keeper_done)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(FreerunError("the judge service is closed"))
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await self._end_zygote()

    @property
    def waiting(self) -> int:
        """Requests that no worker has taken."""
        return self._jobs.qsize()

    async def judge_all(self, requests: Sequence[bytes]) -> list[Verdict]:
        return await asyncio.gather(*map(self.judge, requests))

    async def judge(self, request: bytes) -> Verdict:
        """The verdict on a framed request, retries included. Raises what the pool was stopped with."""
        pause_s = FIRST_PAUSE_S
        for _ in range(self._retries):
            verdict = await self._judge_once(request)
            if verdict.reason not in self._try_again:
                return verdict
            if verdict.reason is JudgeReason.ERROR:
                await asyncio.sleep(pause_s)
                pause_s *= 2
        return await self._judge_once(request)

    def stop(self, error: BaseException) -> None:
        """From now on every caller gets the error, those who are waiting included. The first error stays."""
        self._over = self._over or error
        for answer in list(self._unanswered):
            if not answer.done():
                answer.set_exception(again(self._over))

    async def _judge_once(self, request: bytes) -> Verdict:
        if self._over is not None:
            raise again(self._over)
        answer: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._unanswered.add(answer)
        answer.add_done_callback(self._unanswered.discard)
        self._jobs.put_nowait(_Job(request, answer))
        return await answer

    async def _keep(self, worker: JudgeWorker) -> None:
        """Keep one worker judging, and replace it whenever it hangs or dies, and before it grows."""
        try:
            while True:
                job = await self._jobs.get()
                if job.answer.done():  # its caller has left
                    continue
                if not worker.alive or worker.judgements >= JUDGEMENTS_A_WORKER:
                    worker = await self._replace(worker)
                for _ in range(STRANGERS):
                    if (verdict := await worker.judge(job.request, self._timeout_s)) is not None:
                        break
                    worker = await self._replace(worker)
                else:
                    verdict = Verdict(None, JudgeReason.CRASH, "processes that the judge forked answer in its place")
                if not job.answer.done():
                    job.answer.set_result(verdict)
                if verdict.reason in (JudgeReason.TIMEOUT, JudgeReason.CRASH):
                    worker = await self._replace(worker)
        finally:
            await worker.end()

    async def _replace(self, worker: JudgeWorker) -> JudgeWorker:
        await worker.end()
        return await self._fork()

    async def _fork(self) -> JudgeWorker:
        """From the forkserver; from a new one, the first time and when it is dead."""
        for _ in range(ZYGOTES):
            async with self._starting:
                if self._forkserver is None or not self._forkserver.alive:
                    await self._end_zygote()
                    self._forkserver = await ForkServer.start(self._parts, self._workers, self._log)
                forkserver = self._forkserver
            try:
                return await forkserver.fork()
            except ConnectionError:
                continue
        raise RewardError(f"no worker can be forked: the process that judges are loaded in died {ZYGOTES} times")

    async def _end_zygote(self) -> None:
        if self._forkserver is not None:
            await self._forkserver.end()

    def _on_keeper_done(self, keeper: asyncio.Task[None]) -> None:
        """A keeper ends only by being cancelled; anything else (judges that no longer load) ends the judging."""
        if not keeper.cancelled() and (error := keeper.exception()) is not None:
            self.stop(error)


def again(error: BaseException) -> BaseException:
    """A fresh copy of our own errors: one exception raised by many callers would collect all their tracebacks."""
    return type(error)(error.message, error.detail) if isinstance(error, FreerunError) else error
