"""Judges in processes that are no workers of the controller's, started again when lost: on the machines of a run, where
`reward.where` says so, a judge process on each; and each reward model in one of its own, where the plan has it.

Consumes the ends of judge processes and of the connections to them; produces pools that the judge service works with.
Waits for machines; is unblocked by those that join. A machine whose judge process ends again and again is given up;
when all are, judging ends with the cause, and so does the run.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from freerun.control.waiting import together
from freerun.core import FreerunError, MachineLost, ProcessDied
from freerun.machine.host import processors
from freerun.machine.machines import LOOPBACK
from freerun.machine.parent import RUN_KEY
from freerun.machine.processes import Child, Processes
from freerun.plan.readers import reader_name
from freerun.rewards.config import RewardConfig
from freerun.rewards.judges import BUILT_IN, JUDGES
from freerun.rewards.machines.server import JudgeSettings
from freerun.rewards.machines.spread import JudgeMachine, SpreadPool, SpreadPools
from freerun.rewards.pools import JudgePool, OpensPools, PoolSettings, open_here
from freerun.rewards.service import JudgeService
from freerun.rewards.spec import JudgeSpec
from freerun.run.restarts import Restarts
from freerun.run.starter import Starter

_LAST_WORDS_S = 1.0


def judge_service(starter: Starter, log: Path | None, note: Callable[[str], None]) -> JudgeService:
    """The judge of a run: beside the controller, or on the machines that the plan names."""
    judging = starter.plan.judging
    others: OpensPools = open_here
    if judging.workers and starter.hosts.apart:
        others = JudgesElsewhere(starter, judging.workers, note).open

    def open_model(name: str) -> OpensPools:
        return RewardModelApart(starter.reward_model, starter.key, name, note).open

    return JudgeService(judging.reward, log=log, open_pools=split(others, open_model))


@asynccontextmanager
async def judging_alone(config: RewardConfig, **options: Any) -> AsyncIterator[JudgeService]:
    """Without a run: on this machine. `options` are the service's."""
    key = token_hex()
    with TemporaryDirectory() as logs:
        async with Processes("freerun.run.child", Path(logs)) as processes:

            async def start(name: str, pools: dict[int, PoolSettings]) -> tuple[Child, str]:
                settings, environment = JudgeSettings(LOOPBACK, pools), {RUN_KEY: key}
                child = await processes.begin(name, "judge", settings, processors(), environment, vital=False)
                return child, await child.ready()

            def open_model(name: str) -> OpensPools:
                return RewardModelApart(start, key, name, lambda note: None).open

            async with JudgeService(config, open_pools=split(open_here, open_model), **options) as judge:
                yield judge


def split(others: OpensPools, model: Callable[[str], OpensPools]) -> OpensPools:
    """Opens each reward model by what `model` gives for its name, and all `others` together."""

    @asynccontextmanager
    async def opened(settings: list[PoolSettings], log: BinaryIO | None) -> AsyncIterator[list[JudgePool]]:
        async with AsyncExitStack() as stack:
            models = [one for one in settings if one.is_model]
            opening = [model(reader_name(number))([one], log) for number, one in enumerate(models)]
            rest = [one for one in settings if not one.is_model]
            opening += [others(rest, log)] if rest else []
            found = await together(*(stack.enter_async_context(each) for each in opening))
            of_models, of_rest = iter([pools[0] for pools in found[: len(models)]]), iter(found[-1] if rest else [])
            yield [next(of_models if one.is_model else of_rest) for one in settings]

    return opened


@dataclass(frozen=True)
class _Started:
    child: Child
    machine: JudgeMachine

    async def until_lost(self) -> str:
        """Wait for the end of the process, of its machine, or of the connection; says which."""
        serving, ending = asyncio.ensure_future(self.machine.serve()), asyncio.ensure_future(self.child.wait())
        try:
            await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
            return str(serving.exception()) if serving.done() else str(self.child.died())
        finally:
            ending.cancel()
            serving.cancel()

    async def ended(self, why: str) -> FreerunError:
        """End what is left of it. The cause: how it ended by itself, or that its machine is lost, or else `why`."""
        with suppress(TimeoutError):  # the connection to a process that dies ends a moment before it
            await asyncio.wait_for(self.child.wait(), _LAST_WORDS_S)
        by_itself = self.child.returncode is not None
        await self.child.end()
        died = self.child.died()
        return died if by_itself or isinstance(died, MachineLost) else ProcessDied(f"{self.child.name}: {why}")


class _Elsewhere(ABC):
    """Judge processes, by name, and the pools that they have together."""

    def __init__(self, key: str, workers: Mapping[str, int], note: Callable[[str], None]) -> None:
        """`workers` by process: those of pools that have no number of their own."""
        self._key, self._workers, self._note = key, workers, note
        self._left = len(workers)

    @abstractmethod
    async def _begin(self, name: str, pools: dict[int, PoolSettings]) -> tuple[Child, str]:
        """Start the process; say where it can be reached."""

    @abstractmethod
    def _called(self, name: str) -> str:
        """Name it, with the verb: `the judges on machine a are`."""

    @asynccontextmanager
    async def open(self, settings: list[PoolSettings], log: BinaryIO | None) -> AsyncIterator[list[SpreadPool]]:
        """What judges print is in the logs of their processes. The first start must succeed on every machine."""
        spread = SpreadPools([one.judges for one in settings])
        shares = shared_out([_at_its_path(one) for one in settings], self._workers)
        started = await together(*(self._start(name, pools) for name, pools in shares.items()))
        for name, one in zip(shares, started, strict=True):
            spread.add(name, one.machine)
        keeping = [
            asyncio.create_task(self._keep(name, shares[name], one, spread))
            for name, one in zip(shares, started, strict=True)
        ]
        for task in keeping:
            task.add_done_callback(lambda task: _stop(spread, task))
        try:
            yield spread.pools
        finally:
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)
            spread.stop(FreerunError("the judge service is closed"))
            spread.close()

    async def _start(self, name: str, pools: dict[int, PoolSettings]) -> _Started:
        child, where = await self._begin(name, pools)
        workers = {pool: one.workers for pool, one in pools.items()}
        return _Started(child, await JudgeMachine.connect(where, self._key, workers))

    async def _keep(self, name: str, pools: dict[int, PoolSettings], started: _Started, spread: SpreadPools) -> None:
        judges = self._called(name)
        restarts = Restarts(judges.rpartition(" ")[0], self._note)
        while True:
            why = await started.until_lost()
            spread.remove(name)
            self._note(f"{judges} lost ({why}): what was under way is judged elsewhere, or again")
            lost = await started.ended(why)
            if restarts.given_up(lost):
                self._left -= 1
                if not self._left:
                    raise lost
                return
            started = await restarts.again(lambda: self._start(name, pools))
            spread.add(name, started.machine)
            self._note(f"{judges} back")


class JudgesElsewhere(_Elsewhere):
    """A judge process on each of the machines that have workers."""

    def __init__(self, starter: Starter, workers: Mapping[str, int], note: Callable[[str], None]) -> None:
        """`workers` by machine."""
        super().__init__(starter.key, workers, note)
        self._starter = starter

    async def _begin(self, name: str, pools: dict[int, PoolSettings]) -> tuple[Child, str]:
        return await self._starter.judge(f"judge{list(self._workers).index(name)}", name, pools)

    def _called(self, name: str) -> str:
        return f"the judges on machine {name} are"


class RewardModelApart(_Elsewhere):
    """A process with one reward model."""

    def __init__(
        self,
        start: Callable[[str, dict[int, PoolSettings]], Awaitable[tuple[Child, str]]],
        key: str,
        name: str,
        note: Callable[[str], None],
    ) -> None:
        super().__init__(key, {name: 0}, note)
        self._begin_process = start

    async def _begin(self, name: str, pools: dict[int, PoolSettings]) -> tuple[Child, str]:
        return await self._begin_process(name, pools)

    def _called(self, name: str) -> str:
        return f"the {name} is"


def shared_out(settings: list[PoolSettings], workers: Mapping[str, int]) -> dict[str, dict[int, PoolSettings]]:
    """The pools of each machine, by their numbers. A judge that has a number of workers of its own has as many over all
    machines, and none on some if they are few."""
    total = sum(workers.values())
    found: dict[str, dict[int, PoolSettings]] = {}
    for place, (name, count) in enumerate(workers.items()):
        found[name] = {}
        for number, one in enumerate(settings):
            even = one.workers // len(workers) + (place < one.workers % len(workers))
            if mine := one.workers if one.is_model else count if one.workers == total else even:
                found[name][number] = replace(one, workers=mine, most=0)
    return found


def _at_its_path(pool: PoolSettings) -> PoolSettings:
    """On other machines there is another working folder, so that files are named by their whole path."""
    return replace(pool, judges=[_whole(judge) for judge in pool.judges])


def _whole(judge: JudgeSpec) -> JudgeSpec:
    found = JUDGES.find(judge.name)
    if judge.name in BUILT_IN or found.file is None:
        return judge
    return replace(judge, name=f"{found.file.absolute()}:{found.name}")


def _stop(spread: SpreadPools, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        spread.stop(error)
