"""The judge of a run: the sum of its parts, in processes that can be killed.

`JudgeService` knows which parts there are and what became of each judgement; what a judge does it does not know, and
how workers live and die is in `pool.py`. A failed judgement is a verdict with a reason, never a reward of 0 and, until
there are too many in a row, no exception.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from freerun.core import FreerunError, RewardError, Task
from freerun.rewards.base import JudgeReason, Verdict, total
from freerun.rewards.config import RewardConfig
from freerun.rewards.judges import PURE, REMOTE
from freerun.rewards.memory import Memory
from freerun.rewards.pool import Pool, again
from freerun.rewards.protocol import Request, frame
from freerun.rewards.spec import JudgeSpec

REMOTE_WORKERS = 8
REMOTE_TIMEOUT_S = 60.0
"""Of a part that asks somebody else, unless it says so itself."""


class JudgeService:
    """Judges answers: every part at the same time, each in its pool.

    Consumes calls of `judge` and `judge_all`. Produces a verdict for each answer, and `counts` of their reasons.
    Waits for the slowest part; unblocked by all verdicts, by too many failures in a row, and by closing. Nobody but
    the caller waits for a slow one: `waiting` tells the controller when to admit no more.
    """

    def __init__(
        self, config: RewardConfig, *, log: Path | None = None, retries: int = 1, give_up_after: int = 32
    ) -> None:
        """What judges print goes to the end of `log`, if given; the last of it is kept to explain a crash anyway.

        A judgement is made again, `retries` times, when its process died or a remote judge failed. The service gives up
        when `give_up_after` judgements in a row have failed.
        """
        self._retries, self._give_up_after = retries, give_up_after
        self.counts: Counter[JudgeReason] = Counter()
        self._config = config
        self._log = log
        self._open = AsyncExitStack()
        self._pools: list[Pool] = []
        self._judges: list[Pool | Memory] = []
        self._failures: list[Verdict] = []
        self._given_up: RewardError | None = None

    async def __aenter__(self) -> Self:
        """Returns when every worker is ready; raises what hinders one."""
        self._config.check()
        try:
            log = self._open.enter_context(self._log.open("ab", buffering=0)) if self._log else None
            for parts in pooled(self._config.parts):
                workers, timeout_s = self._allowed(parts[0])
                pool = Pool(parts, workers=workers, timeout_s=timeout_s, retries=self._retries, log=log)
                self._pools.append(await self._open.enter_async_context(pool))
                self._judges.append(Memory(pool.judge) if all(map(remembers, parts)) else pool)
        except BaseException:
            await self._open.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.aclose()

    @property
    def waiting(self) -> int:
        """Answers that nobody has begun to judge, by the part that is furthest behind."""
        return max((pool.waiting for pool in self._pools), default=0)

    async def judge(self, task: Task, text: str) -> Verdict:
        (verdict,) = await self.judge_all(task, [text])
        return verdict

    async def judge_all(self, task: Task, texts: Sequence[str]) -> list[Verdict]:
        """Of each answer. Raises RewardError once `give_up_after` judgements in a row have failed."""
        if not self._judges:
            raise FreerunError("the judge service is not open: use `async with`")
        framed = {text: frame(Request(task, text)) for text in set(texts)}
        requests = [framed[text] for text in texts]
        parts = await asyncio.gather(*(judge.judge_all(requests) for judge in self._judges))
        verdicts = [total(verdicts) for verdicts in zip(*parts, strict=True)]
        for verdict in verdicts:
            self._record(verdict)
        return verdicts

    def _allowed(self, part: JudgeSpec) -> tuple[int, float]:
        remote = part.name in REMOTE
        workers = part.workers or (REMOTE_WORKERS if remote else self._config.processes)
        return workers, part.timeout_s or (REMOTE_TIMEOUT_S if remote else self._config.timeout_s)

    def _record(self, verdict: Verdict) -> None:
        """Count, and give up when too many in a row have failed."""
        if self._given_up is not None:
            raise again(self._given_up)
        self.counts[verdict.reason] += 1
        if verdict.reward is not None:
            self._failures.clear()
            return
        self._failures.append(verdict)
        if len(self._failures) < self._give_up_after:
            return
        first = self._failures[0]
        reasons = Counter(failed.reason.value for failed in self._failures)
        tally = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
        self._given_up = RewardError(
            f"{len(self._failures)} judgements in a row failed ({tally}), the first with: "
            f"{first.detail.partition(chr(10))[0]}; fix the judge {self._config.in_words}",
            first.detail,
        )
        for pool in self._pools:
            pool.stop(self._given_up)
        raise again(self._given_up)


def pooled(parts: list[JudgeSpec]) -> list[list[JudgeSpec]]:
    """Parts by the pool that judges them: all that ask for nothing special share the first."""
    shared = [part for part in parts if not needs_own_pool(part)]
    return ([shared] if shared else []) + [[part] for part in parts if needs_own_pool(part)]


def needs_own_pool(part: JudgeSpec) -> bool:
    return part.name in REMOTE or any(wish is not None for wish in (part.cache, part.workers, part.timeout_s))


def remembers(part: JudgeSpec) -> bool:
    return part.name in PURE | {"model"} if part.cache is None else part.cache
