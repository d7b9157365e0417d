"""Judging in processes that can be killed.

`JudgeService` knows which worker is busy, for how long, and what became of it; what a judge does it does not know. A
failed judgement is a verdict with a reason, never a reward of 0 and, until there are too many in a row, no exception.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from freerun.core import FreerunError, RewardError, Task
from freerun.rewards.base import JudgeReason, Verdict
from freerun.rewards.config import RewardConfig
from freerun.rewards.process import WorkerProcess
from freerun.rewards.protocol import Request, frame
from freerun.rewards.verifiers import check


@dataclass(slots=True)
class _Job:
    request: bytes
    answer: asyncio.Future[Verdict]


class JudgeService:
    """Judges answers, `config.workers` at a time.

    Consumes calls of `judge`, first come first served. Produces a verdict for each, and `counts` of their reasons.
    Waits for a free worker, then at most `timeout_s` for its verdict. Unblocked by the verdict, by the deadline (the
    worker's process group is killed, and a new worker started), by the worker's death, by too many failures in a row,
    and by closing. A cancelled call costs nobody else anything: a judgement not yet begun is skipped, one that runs is
    left to end or to time out, and its verdict is counted but given to nobody.

    Invariant: a worker has at most one request, and belongs to one keeper task, which alone talks to it and ends it.
    """

    def __init__(self, config: RewardConfig, *, log: Path | None = None) -> None:
        """What judges print goes to the end of `log`, if given; the last of it is kept to explain a crash anyway."""
        self.counts: Counter[JudgeReason] = Counter()
        self._config = config
        self._log_path = log
        self._log: BinaryIO | None = None
        self._jobs: asyncio.Queue[_Job] = asyncio.Queue()
        self._unanswered: set[asyncio.Future[Verdict]] = set()
        self._keepers: list[asyncio.Task[None]] = []
        self._failures: list[Verdict] = []
        self._over: BaseException | None = FreerunError("the judge service is not open: use `async with`")

    async def __aenter__(self) -> Self:
        """Returns when every worker has loaded the judge; raises what hinders one."""
        check(self._config.judge)
        self._log = None if self._log_path is None else self._log_path.open("ab", buffering=0)
        starts = [asyncio.create_task(self._start()) for _ in range(self._config.workers)]
        try:
            workers = await asyncio.gather(*starts)
        except BaseException:
            for start in starts:
                start.cancel()
            for started in await asyncio.gather(*starts, return_exceptions=True):
                if isinstance(started, WorkerProcess):
                    await started.end()
            self._close_log()
            raise
        self._over = None
        self._keepers = [asyncio.create_task(self._keep(worker)) for worker in workers]
        for keeper in self._keepers:
            keeper.add_done_callback(self._on_keeper_done)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop(FreerunError("the judge service is closed"))
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        self._close_log()

    async def judge(self, task: Task, text: str) -> Verdict:
        """The verdict on one answer. Raises RewardError once `give_up_after` judgements in a row have failed."""
        if self._over is not None:
            raise _again(self._over)
        answer: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._unanswered.add(answer)
        answer.add_done_callback(self._unanswered.discard)
        self._jobs.put_nowait(_Job(frame(Request(task, text)), answer))
        return await answer

    async def _keep(self, worker: WorkerProcess) -> None:
        """Keep one worker judging, and replace it whenever it hangs or dies."""
        try:
            while True:
                job = await self._jobs.get()
                if job.answer.done():  # its caller has left
                    continue
                if not worker.alive:  # it died while idle, which is no fault of this judgement
                    worker = await self._replace(worker)
                verdict = await worker.judge(job.request, self._config.timeout_s)
                self._record(verdict)
                if not job.answer.done():
                    job.answer.set_result(verdict)
                if verdict.reason in (JudgeReason.TIMEOUT, JudgeReason.CRASH):
                    worker = await self._replace(worker)
        finally:
            await worker.end()

    async def _start(self) -> WorkerProcess:
        return await WorkerProcess.start(self._config.judge, self._log)

    async def _replace(self, worker: WorkerProcess) -> WorkerProcess:
        await worker.end()
        return await self._start()

    def _record(self, verdict: Verdict) -> None:
        """Count, and give up when too many in a row have failed."""
        self.counts[verdict.reason] += 1
        if verdict.reason is JudgeReason.OK:
            self._failures.clear()
            return
        self._failures.append(verdict)
        if len(self._failures) >= self._config.give_up_after:
            first = self._failures[0]
            reasons = Counter(failed.reason.value for failed in self._failures)
            tally = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
            self._stop(
                RewardError(
                    f"{len(self._failures)} judgements in a row failed ({tally}), the first with: "
                    f"{first.detail.partition(chr(10))[0]}; fix the judge {self._config.judge}, or raise give_up_after",
                    first.detail,
                )
            )

    def _close_log(self) -> None:
        if self._log is not None:
            self._log.close()

    def _stop(self, error: BaseException) -> None:
        """From now on every caller gets the error, those who are waiting included. The first error stays."""
        self._over = self._over or error
        for answer in list(self._unanswered):
            if not answer.done():
                answer.set_exception(_again(self._over))

    def _on_keeper_done(self, keeper: asyncio.Task[None]) -> None:
        """A keeper ends only by being cancelled; anything else (a worker that no longer starts) ends the judging."""
        if not keeper.cancelled() and (error := keeper.exception()) is not None:
            self._stop(error)


def _again(error: BaseException) -> BaseException:
    """A fresh copy of our own errors: one exception raised by many callers would collect all their tracebacks."""
    return type(error)(error.message, error.detail) if isinstance(error, FreerunError) else error
