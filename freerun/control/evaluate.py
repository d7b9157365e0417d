"""How good a version is: pass@1 and pass@k over held-out tasks, with a confidence interval.

Evaluation in a run has an engine of its own, so it is pinned to one version, and neither generation nor training waits
for it.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import comb, sqrt

from freerun.control.engine_health import EngineHealth
from freerun.control.fleet import cannot_restart, looked_at
from freerun.control.judging import verdicts_on
from freerun.control.waiting import together
from freerun.core import DataError, EngineError, Task, Version
from freerun.core.observer import Observer
from freerun.core.reports import Evaluation, Span, WeightsHandle
from freerun.core.trajectory import Trajectory
from freerun.engines.base import Answers, Client, Engine
from freerun.engines.tracked import TrackedEngine
from freerun.rewards.base import GroupJudge, Verdict
from freerun.rollouts.base import GroupRollout, trajectories_of

_Z95 = 1.959964


@dataclass
class Evaluator:
    tasks: list[Task]
    rollout: GroupRollout
    judge: GroupJudge
    engine: Engine
    pass_reward: float
    seed: int

    async def evaluate(
        self,
        progress: Callable[[], None] = lambda: None,
        engine: Answers | None = None,
        judged: Callable[[Task, Sequence[Trajectory], Sequence[Verdict]], None] = lambda task, given, verdicts: None,
    ) -> Evaluation:
        """Every task once, all at the same time: the engine queues what it has no room for. `engine` is asked instead
        of its own where one is given; `judged` is told each task's answers and their verdicts."""
        asked = engine or self.engine

        async def one(index: int, task: Task) -> tuple[list[float | None], int]:
            client = Client(asked, f"evaluate/{self.seed}/{index}")
            trajectories = trajectories_of(await self.rollout(task, client))
            verdicts = await verdicts_on(self.judge, task, trajectories)
            judged(task, trajectories, verdicts)
            progress()
            truncated = sum(one.sample is not None and one.sample.truncated for one in trajectories)
            return [verdict.reward for verdict in verdicts], truncated

        outcomes = await together(*(one(index, task) for index, task in enumerate(self.tasks)))
        return summarise([rewards for rewards, _ in outcomes], sum(cut for _, cut in outcomes), self.pass_reward)


def summarise(rewards: list[list[float | None]], truncated: int, pass_reward: float) -> Evaluation:
    """Rewards by task; every task has the same number of samples."""
    if not rewards:
        raise DataError("there is nothing to evaluate on: the held-out data is empty")
    k, tasks = len(rewards[0]), len(rewards)
    passed = [sum(r is not None and r >= pass_reward for r in task) for task in rewards]
    shares = [count / k for count in passed]
    low, high = interval(shares, k)
    known = [r for task in rewards for r in task if r is not None]
    return Evaluation(
        tasks=tasks,
        k=k,
        pass_at_1=sum(shares) / tasks,
        low=low,
        high=high,
        pass_at_k=sum(pass_at(k, k, count) for count in passed) / tasks,
        reward_mean=sum(known) / max(len(known), 1),
        truncated_share=truncated / (tasks * k),
        judge_failures=tasks * k - len(known),
    )


def pass_at(k: int, samples: int, passed: int) -> float:
    """The unbiased estimate (Chen et al. 2021): the chance that k of the samples hold at least one that passed."""
    return 1.0 - comb(samples - passed, k) / comb(samples, k)


def interval(shares: list[float], k: int) -> tuple[float, float]:
    """95%, for the mean over tasks. Wilson's for one sample a task (right near 0 and 1 too); with several, the samples
    of a task are not independent, so tasks are the unit: a normal interval from their spread."""
    n, mean = len(shares), sum(shares) / len(shares)
    if k == 1:
        centre = (mean + _Z95**2 / (2 * n)) / (1 + _Z95**2 / n)
        half = _Z95 / (1 + _Z95**2 / n) * sqrt(mean * (1 - mean) / n + _Z95**2 / (4 * n * n))
    else:
        centre = mean
        half = _Z95 * sqrt(sum((share - mean) ** 2 for share in shares) / max(n - 1, 1) / n)
    return max(0.0, centre - half), min(1.0, centre + half)


class EvaluateBeside(Observer):
    """Evaluates every so many versions beside the run, on an engine of its own.

    Consumes published versions; produces evaluations, which it tells `observer`; waits for its engine; is unblocked by
    it. When the previous evaluation is still going, or the engine fails or is lost, the version is skipped, and a note
    says so: nobody waits. An engine that joins in place of one that is gone has the next version. One that hangs is
    ended by `restart`, as the other engines are.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        every: int,
        observer: Observer,
        restart: Callable[[str, str, bool], bool] = cannot_restart,
    ) -> None:
        self._evaluator = evaluator
        self._every = every
        self._observer = observer
        self._going: asyncio.Task[None] | None = None
        self._latest: WeightsHandle | None = None
        self._begun: Version = -1
        self._engine = _tracked("evaluator", evaluator.engine)
        self._restart = restart
        self._health = EngineHealth()

    async def join(self, name: str, engine: Engine) -> None:
        """Its engine has come back, or another one in its place."""
        self._engine = _tracked(name, engine)
        self._observer.note(f"{name} is back")

    def remove(self, name: str, why: str, how: str = "is lost") -> None:
        """Its engine is gone."""
        self._engine.lose(why)
        self._health.forget(name)
        self._observer.doing(name, f"{how.removeprefix('is ')}: {why}")

    async def poll(self) -> None:
        """Look at its engine, also while it has nothing to do."""
        engine = self._engine
        _, wrong = await looked_at(engine, self._health)
        if wrong and engine is self._engine:
            self._health.forget(engine.name)
            self._restart(engine.name, wrong, True)

    def trainer_lost(self) -> None:
        """It is started again; a version that cannot be fetched meanwhile is skipped."""

    def published_again(self, handle: WeightsHandle) -> None:
        """Its newest version can be had by that handle, and no longer by the one before."""
        if self._latest and self._latest.version == handle.version:
            self._latest = handle

    async def published(self, handle: WeightsHandle) -> None:
        """Take the weights if this version's turn has come, and evaluate them in the background."""
        self._latest = handle
        if handle.version % self._every:
            return
        if self._going and not self._going.done():
            self._observer.note(f"version {handle.version} is not evaluated: the previous evaluation still runs")
            return
        await self.finish()
        await self._begin(handle)

    async def _begin(self, handle: WeightsHandle) -> None:
        """Start on that version; the engine has version 0 from its beginning."""
        engine, version = self._engine, handle.version
        with self._skipped(version):
            await engine.take(handle)
            self._begun = version
            self._going = asyncio.create_task(self._evaluate(engine, version))

    async def _evaluate(self, engine: TrackedEngine, version: Version) -> None:
        """All of it, or nothing: without its engine, members would fail and count as not passed."""
        self._observer.doing(engine.name, f"evaluates version {version}")
        start_s = time.monotonic()
        with self._skipped(version):
            self._observer.evaluated(version, await engine.roll_out(self._evaluator.evaluate(engine=engine)))
            self._observer.doing(engine.name, "idle")
        self._observer.span(Span("evaluate", f"version {version}", start_s, time.monotonic(), process=engine.name))

    @contextmanager
    def _skipped(self, version: Version) -> Iterator[None]:
        try:
            yield
        except EngineError as error:
            self._observer.note(f"version {version} is not evaluated: {error}")

    async def finish(self) -> None:
        """Wait for the evaluation that is going, if any; its failure is raised here."""
        if self._going:
            await self._going

    async def last(self) -> None:
        """At the end of the run: see to it that its last version is evaluated."""
        await self.finish()
        if self._latest and self._latest.version > self._begun:
            await self._begin(self._latest)
            await self.finish()

    def cancel(self) -> None:
        if self._going:
            self._going.cancel()


def _tracked(name: str, engine: Engine) -> TrackedEngine:
    """Its failures are noted where they matter."""
    return TrackedEngine(name, engine, lambda engine, error: None)
