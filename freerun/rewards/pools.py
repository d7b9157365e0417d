"""Which pools of workers a reward needs, and how they are opened: on this machine, unless a run has others judge."""

from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from freerun.core.reports import JudgeLoad, Span
from freerun.rewards.base import Verdict
from freerun.rewards.config import MOST_WORKERS, RewardConfig
from freerun.rewards.judges import COMPUTE, MODELS, REMOTE
from freerun.rewards.model_pool import ModelPool
from freerun.rewards.pool import Pool
from freerun.rewards.spec import JudgeSpec

REMOTE_WORKERS = 8
REMOTE_TIMEOUT_S = 60.0
"""The defaults of a remote judge."""
MODEL_AT_ONCE = 64
"""Answers that a reward model computes together, at most."""
MODEL_TIMEOUT_S = 300.0
"""For all of them."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Workers that run the same judges."""

    judges: list[JudgeSpec]
    workers: int
    timeout_s: float
    retries: int
    most: int = 0
    """How many workers it may grow to; 0: as many as it begins with."""

    @property
    def is_model(self) -> bool:
        """Whether it is a reward model; `workers` are then the answers that it takes at a time."""
        return any(judge.name in MODELS for judge in self.judges)


class JudgePool(Protocol):
    """See `Pool`."""

    sees_samples: bool

    @property
    def waiting(self) -> int: ...

    @property
    def load(self) -> JudgeLoad: ...

    def judge(self, request: bytes) -> Awaitable[Verdict]: ...

    async def judge_all(self, requests: Sequence[bytes]) -> list[Verdict]: ...

    def stop(self, error: BaseException) -> None: ...

    def spans(self, every: bool = False) -> list[Span]: ...


class OpensPools(Protocol):
    """Opens a pool for each of the settings, in their order. Whatever judges print goes to the log."""

    def __call__(
        self, settings: list[PoolSettings], log: BinaryIO | None
    ) -> AbstractAsyncContextManager[Sequence[JudgePool]]: ...


@asynccontextmanager
async def open_here(settings: list[PoolSettings], log: BinaryIO | None) -> AsyncIterator[list[JudgePool]]:
    """On this machine; reward models in this very process."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(_pool(one, log)) for one in settings]


def _pool(one: PoolSettings, log: BinaryIO | None) -> AbstractAsyncContextManager[JudgePool]:
    if one.is_model:
        return ModelPool(one.judges[0], one.timeout_s, one.workers)
    return Pool(one.judges, workers=one.workers, timeout_s=one.timeout_s, retries=one.retries, most=one.most, log=log)


def pools_of(config: RewardConfig, retries: int) -> list[PoolSettings]:
    return [
        PoolSettings(judges, *_pool_size(judges[0], config), retries=retries, most=_most(judges, config))
        for judges in by_pool(config.parts)
    ]


def _most(judges: list[JudgeSpec], config: RewardConfig) -> int:
    """Whether more workers may help is known of our own judges, and measured of others. Nothing grows where somebody
    has said how many there are."""
    if judges[0].name in MODELS:
        return 0
    told = judges[0].workers or (config.workers and not config.may_grow and judges[0].name not in REMOTE)
    may_wait = any(judge.name not in COMPUTE for judge in judges)
    return MOST_WORKERS if may_wait and not told else 0


def _pool_size(judge: JudgeSpec, config: RewardConfig) -> tuple[int, float]:
    """The number of workers of a judge's pool, and its deadline."""
    if judge.name in MODELS:
        return MODEL_AT_ONCE, judge.timeout_s or MODEL_TIMEOUT_S
    remote = judge.name in REMOTE
    workers = judge.workers or (REMOTE_WORKERS if remote else config.processes)
    return workers, judge.timeout_s or (REMOTE_TIMEOUT_S if remote else config.timeout_s)


def by_pool(judges: list[JudgeSpec]) -> list[list[JudgeSpec]]:
    """Group the judges by the pool that runs them: those without settings of their own share the first pool."""
    shared = [judge for judge in judges if not _needs_own_pool(judge)]
    return ([shared] if shared else []) + [[judge] for judge in judges if _needs_own_pool(judge)]


def _needs_own_pool(judge: JudgeSpec) -> bool:
    own_settings = (judge.cache, judge.workers, judge.timeout_s)
    return judge.name in REMOTE | MODELS or any(setting is not None for setting in own_settings)
