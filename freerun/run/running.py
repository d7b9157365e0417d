"""The processes of a run: engines, trainer, judges and agents, on this machine or on others, and ended with the run."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from freerun.control.waiting import background, together
from freerun.core import Batch, EngineError, ProcessKilled, TrainerError
from freerun.core.reports import Span, StepResult
from freerun.engines.http import HttpEngine
from freerun.machine.processes import Processes
from freerun.observe.folder import RunFolder
from freerun.plan.placement import EVALUATOR, RunKind
from freerun.plan.plan import Plan
from freerun.rewards.service import JudgeService
from freerun.run.agents import AgentServices, agent_services
from freerun.run.environments import gpu_environments
from freerun.run.hosts import Hosts
from freerun.run.judges import judge_service
from freerun.run.kept import KeptEngines
from freerun.run.kept_trainer import KeptTrainer
from freerun.run.prepare import CHILD, Prepared
from freerun.run.shared_folder import note_unshared
from freerun.run.starter import StartedTrainer, Starter
from freerun.run.teacher import RunTeacher, teaches
from freerun.train.checkpoint_folder import version_of
from freerun.train.remote import RemoteTrainer

T = TypeVar("T")

_LAST_WORDS_S = 1.0
_STARTS = 3
"""How often a part is started that is killed before it is ready."""


@dataclass
class RunProcesses:
    """The processes of a run, as the controller reaches them."""

    prepared: Prepared
    engines: dict[str, HttpEngine]
    """By name; the evaluator is not among them."""
    trainer: KeptTrainer
    judge: JudgeService
    evaluation_engine: HttpEngine | None
    agents: AgentServices | None
    kept: KeptEngines
    hosts: Hosts
    teacher: RunTeacher | None = None
    """Who reads what is sampled, where the objective learns from that."""

    def spans(self, every: bool = False) -> list[Span]:
        """When judges and agents were busy, since it was last asked. What may still become longer is left for the next
        time, unless `every` one is wanted."""
        return self.judge.spans(every) + (self.agents.pool.spans(every) if self.agents else [])


@asynccontextmanager
async def run_processes(
    hosts: Hosts,
    prepared: Prepared,
    folder: RunFolder,
    plan: Plan,
    checkpoint: Path | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[RunProcesses]:
    """Start everything at the same time, and end it all on leaving. A process that dies, and that the run cannot do
    without, fails the block."""
    async with AsyncExitStack() as stack:
        environments = await stack.enter_async_context(gpu_environments(plan, hosts, note))
        await note_unshared(hosts, folder, plan, note)
        processes = await stack.enter_async_context(Processes(CHILD, folder.logs))
        starter = Starter(prepared.config, plan, processes, environments, hosts, prepared.model_folder)
        kept = await stack.enter_async_context(KeptEngines(starter, prepared.shape, note))
        judge = judge_service(starter, folder.logs / "judge.log", note)
        agents = await stack.enter_async_context(agent_services(prepared, folder.logs))
        generating = [*plan.engines, *([plan.evaluator] if plan.evaluator else [])]
        engines: list[HttpEngine]
        started: StartedTrainer
        teaching = RunTeacher(prepared, starter, note) if teaches(prepared, plan.kind) else None
        tries = _STARTS if plan.kind is RunKind.TRAIN else 1
        judges = not plan.kind.supervised or plan.evaluator is not None
        starting: list[Coroutine[Any, Any, Any]] = [
            stack.enter_async_context(teaching or nullcontext()),
            stack.enter_async_context(judge if judges else nullcontext()),
            _started(partial(starter.trainer, checkpoint), tries, note),
            *(_started(partial(kept.start, one), tries, note) for one in generating),
        ]
        _, _, started, *engines = await together(*starting)
        named = {one.process: engine for one, engine in zip(generating, engines, strict=True)}
        evaluator = named.pop(EVALUATOR, None)
        version, restarts = (checkpoint and version_of(checkpoint)) or 0, prepared.config.control.restarts
        learn = _learning(plan.kind, prepared)
        trainer = stack.enter_context(KeptTrainer(started, starter.trainer, folder, version, restarts, learn))
        taught = background(teaching.keep()) if teaching else nullcontext()
        async with background(processes.watch()), background(trainer.keep()), taught:
            try:
                yield RunProcesses(prepared, named, trainer, judge, evaluator, agents, kept, hosts, teaching)
            except (EngineError, TrainerError):
                with suppress(TimeoutError):  # when a process of theirs died, that is the first cause
                    await asyncio.wait_for(processes.watch(), _LAST_WORDS_S)
                raise


def _learning(kind: RunKind, prepared: Prepared) -> Callable[[RemoteTrainer, Batch], Awaitable[StepResult]]:
    """How the trainer of such a run learns from a batch."""
    if kind is RunKind.SFT:
        return lambda trainer, batch: trainer.sft(batch.samples)
    if kind is RunKind.DPO:
        return lambda trainer, batch: trainer.dpo(batch.samples, prepared.config.dpo.beta)
    return RemoteTrainer.step


async def _started(start: Callable[[], Awaitable[T]], tries: int, note: Callable[[str], None]) -> T:
    """What is killed before it is ready is started again: nothing is lost with it."""
    while True:
        try:
            return await start()
        except ProcessKilled as killed:
            tries -= 1
            if not tries:
                raise
            note(f"{killed.message.partition('; its log is')[0]} before it was ready: it is started again")
