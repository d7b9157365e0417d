"""The reward of a run: the weighted sum of its judges, which run in processes that can be killed.

`JudgeService` knows which judges there are and how each judgement ended. It does not know what a judge does; worker
processes are managed in `pool.py`. A failed judgement is a verdict with a reason, never a reward of 0. Only too many
failures in a row raise an exception.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Self

from freerun.core import FreerunError, RewardError, Task
from freerun.core.reports import JudgeLoad, Span
from freerun.machine.frames import frame
from freerun.rewards.base import JudgedSample, JudgeReason, Verdict, total
from freerun.rewards.cache import VerdictCache
from freerun.rewards.config import RewardConfig
from freerun.rewards.judges import PURE
from freerun.rewards.pool import copy_error
from freerun.rewards.pools import JudgePool, OpensPools, PoolSettings, open_here, pools_of
from freerun.rewards.protocol import Request
from freerun.rewards.spec import JudgeSpec

_FRAME = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)


class JudgeService:
    """Judges answers. Each pool of judges works on all answers at the same time.

    Consumes calls of `judge` and `judge_all`. Produces a verdict for each answer, and `counts` of their reasons. Waits
    for the slowest judge; unblocked by all verdicts, by too many failures in a row, and by closing. Only the caller
    waits for a slow judge: `waiting` tells the controller when to admit no more.
    """

    def __init__(
        self,
        config: RewardConfig,
        *,
        log: Path | None = None,
        retries: int = 1,
        give_up_after: int = 32,
        open_pools: OpensPools = open_here,
    ) -> None:
        """Append what judges print to `log`, if given. The last of it is kept in any case, to explain a crash. Judges
        run where `open_pools` has them run.

        A judgement is made again, `retries` times, when its process died or a remote judge failed. The service gives up
        when `give_up_after` judgements in a row have failed.
        """
        self._retries, self._give_up_after = retries, give_up_after
        self.counts: Counter[JudgeReason] = Counter()
        self._config = config
        self._log = log
        self._stack = AsyncExitStack()
        self._open_pools = open_pools
        self._pools: Sequence[JudgePool] = []
        self._settings: Sequence[PoolSettings] = []
        self._judges: list[JudgePool | VerdictCache] = []
        self._failures: list[Verdict] = []
        self._gave_up: RewardError | None = None

    async def __aenter__(self) -> Self:
        """Return when every worker is ready; raise if one cannot start."""
        self._config.check()
        try:
            log = self._stack.enter_context(self._log.open("ab", buffering=0)) if self._log else None
            settings = self._settings = pools_of(self._config, self._retries)
            self._pools = await self._stack.enter_async_context(self._open_pools(settings, log))
            self._judges = [
                VerdictCache(pool.judge) if all(map(is_cached, one.judges)) else pool
                for one, pool in zip(settings, self._pools, strict=True)
            ]
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    @property
    def waiting(self) -> int:
        """The number of answers that wait to be judged, in the pool with the longest queue."""
        return max((pool.waiting for pool in self._pools), default=0)

    @property
    def load(self) -> JudgeLoad | None:
        """What judging has cost so far, in the pool that holds the others up: answers wait for all of them."""
        return max((pool.load for pool in self._pools), key=_fullness, default=None)

    def spans(self, every: bool = False) -> list[Span]:
        """When judges were busy, since it was last asked."""
        return [span for pool in self._pools for span in pool.spans(every)]

    async def judge(self, task: Task, answer: str | JudgedSample) -> Verdict:
        (verdict,) = await self.judge_all(task, [answer])
        return verdict

    async def judge_all(self, task: Task, answers: Sequence[str | JudgedSample]) -> list[Verdict]:
        """A verdict on each answer. Raises RewardError once `give_up_after` judgements in a row have failed."""
        if not self._judges:
            raise FreerunError("the judge service is not open: use `async with`")
        texts = [answer if isinstance(answer, str) else answer.text for answer in answers]
        framed = {text: frame(Request(task, text)) for text in set(texts)}
        requests = [framed[text] for text in texts]
        seen = Seen.of(self._settings, self._pools)
        wholes = whole_requests(task, answers) if Seen.GROUP in seen else []
        alone = sample_requests(task, answers) if Seen.SAMPLE in seen else []
        asked = {Seen.TEXT: requests, Seen.SAMPLE: alone, Seen.GROUP: wholes}
        judging = (judge.judge_all(asked[sees]) for judge, sees in zip(self._judges, seen, strict=True))
        by_judge = await asyncio.gather(*judging)
        verdicts = [total(verdicts) for verdicts in zip(*by_judge, strict=True)]
        for verdict in verdicts:
            self._record(verdict)
        return verdicts

    def _record(self, verdict: Verdict) -> None:
        """Count the verdict, and give up if too many in a row have failed."""
        if self._gave_up is not None:
            raise copy_error(self._gave_up)
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
        self._gave_up = RewardError(
            f"{len(self._failures)} judgements in a row failed ({tally}), the first with: "
            f"{_raised_at(first.detail)}{first.detail.partition(chr(10))[0]}; fix the judge {self._config.in_words}",
            first.detail,
        )
        for pool in self._pools:
            pool.stop(self._gave_up)
        raise copy_error(self._gave_up)


class Seen(Enum):
    """What a pool's requests show of an answer."""

    TEXT = "text"
    SAMPLE = "sample"
    GROUP = "group"

    @classmethod
    def of(cls, settings: Sequence[PoolSettings], pools: Sequence[JudgePool]) -> list["Seen"]:
        both = zip(settings, pools, strict=True)
        return [cls.SAMPLE if one.is_model else cls.GROUP if pool.sees_samples else cls.TEXT for one, pool in both]


def _fullness(load: JudgeLoad) -> tuple[int, float]:
    return load.waiting, load.busy_s / max(load.workers, 1)


def _raised_at(detail: str) -> str:
    """`mine.py:3: `, the innermost line of a traceback; nothing where there is none."""
    frames = _FRAME.findall(detail)
    return f"{frames[-1][0]}:{frames[-1][1]}: " if frames else ""


def whole_requests(task: Task, answers: Sequence[str | JudgedSample]) -> list[bytes]:
    """A request for each answer, with the whole group in it: for judges that ask for samples."""
    group = [JudgedSample(answer) if isinstance(answer, str) else answer for answer in answers]
    numbered = [replace(sample, index=index, group=[]) for index, sample in enumerate(group)]
    return [frame(Request(task, sample.text, numbered, sample.index)) for sample in numbered]


def sample_requests(task: Task, answers: Sequence[str | JudgedSample]) -> list[bytes]:
    """A request for each answer, with its own conversation and nobody else's."""
    samples = [JudgedSample(answer) if isinstance(answer, str) else answer for answer in answers]
    return [frame(Request(task, one.text, [replace(one, index=0, group=[])])) for one in samples]


def is_cached(judge: JudgeSpec) -> bool:
    return judge.name in PURE | {"model"} if judge.cache is None else judge.cache
