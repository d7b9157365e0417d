"""A run on this machine: engines, trainer and judges as processes, wired to the controller and ended with it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from freerun.control.controller import Run
from freerun.control.controller import train as control_train
from freerun.control.evaluate import EvaluateBeside, Evaluator
from freerun.control.waiting import background, together
from freerun.core import EngineError, TrainerError
from freerun.core.observer import Observer
from freerun.core.records import StepRecord
from freerun.core.reports import Evaluation
from freerun.core.state import RunState
from freerun.engines.base import Engine
from freerun.engines.http import HttpEngine
from freerun.machine.garbage import freeze_heap
from freerun.machine.processes import Processes
from freerun.machine.scratch import scratch_folder
from freerun.observe.folder import RunFolder
from freerun.observe.live import view
from freerun.observe.report import reported
from freerun.plan.placement import RunKind, engine_name
from freerun.plan.plan import Plan
from freerun.rewards.service import JudgeService
from freerun.rollouts.base import GroupRollout
from freerun.rollouts.load import make_rollout
from freerun.run.agents import AgentServices, agent_services
from freerun.run.checkpoints import Checkpointer, saved
from freerun.run.environments import gpu_environments
from freerun.run.observed import Observed
from freerun.run.prepare import Prepared
from freerun.run.start import Start, create_folder
from freerun.run.starter import Starter
from freerun.train.remote import RemoteTrainer

_POLL_S = 0.25
_LAST_WORDS_S = 1.0


@dataclass
class RunProcesses:
    """The processes of a run, as the controller reaches them."""

    prepared: Prepared
    engines: list[HttpEngine]
    trainer: RemoteTrainer
    judge: JudgeService
    evaluation_engine: HttpEngine | None
    agents: AgentServices | None = None

    def evaluator(self) -> Evaluator | None:
        if self.evaluation_engine is None:
            return None
        return _evaluator(self.prepared, self.judge, self.evaluation_engine, self.agents)


@asynccontextmanager
async def run_processes(
    prepared: Prepared,
    folder: RunFolder,
    plan: Plan,
    checkpoint: Path | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[RunProcesses]:
    """Start everything at the same time, and end it all on leaving. A process that dies fails the block."""
    async with AsyncExitStack() as stack:
        scratch = stack.enter_context(scratch_folder())
        environments = await stack.enter_async_context(gpu_environments(plan, scratch, note))
        processes = await stack.enter_async_context(Processes("freerun.run.child", folder.logs))
        starter = Starter(prepared.config, plan, processes, environments, scratch)
        judge = JudgeService(plan.reward, log=folder.logs / "judge.log")
        agents = await stack.enter_async_context(agent_services(prepared, folder.logs))
        _, endpoint, *urls = await together(
            stack.enter_async_context(judge),
            starter.trainer(checkpoint),
            *(starter.engine(one) for one in (*plan.engines, *([plan.evaluator] if plan.evaluator else []))),
        )
        engines = [await stack.enter_async_context(HttpEngine(str(url), starter.key)) for url in urls]
        remote = stack.enter_context(RemoteTrainer(str(endpoint)))
        evaluation_engine = engines.pop() if plan.evaluator else None
        async with background(processes.watch()):
            try:
                yield RunProcesses(prepared, engines, remote, judge, evaluation_engine, agents)
            except (EngineError, TrainerError):
                with suppress(TimeoutError):  # when a process of theirs died, that is the first cause
                    await asyncio.wait_for(processes.watch(), _LAST_WORDS_S)
                raise


@dataclass
class Outcome:
    """What a training run came to."""

    folder: RunFolder
    steps: list[StepRecord]
    evaluations: list[Evaluation]


async def train(prepared: Prepared, start: Start | None = None, guests: Iterable[Observer] = ()) -> Outcome:
    """The whole run, or the rest of it. `guests` observe it besides the run's folder and the terminal."""
    config = prepared.config
    start = start or Start(create_folder(prepared))
    start = replace(start, state=replace(start.state, model=prepared.identity))
    with start.opened() as folder:
        live = view(folder.name, config.control.steps, config.control.max_staleness)
        observed = Observed.by(prepared, start, [live], [*prepared.guests, *guests])
        with reported(folder, config.control.max_staleness), closing(observed.all):
            for told in [*start.notes, *([prepared.held_out_warning] if prepared.held_out_warning else [])]:
                observed.all.note(told)
            observed.all.doing("controller", "starts engine, trainer and reward workers")
            plan = prepared.plan(evaluates=bool(config.evaluate.every))
            async with run_processes(prepared, folder, plan, start.checkpoint, observed.all.note) as running:
                rollout = rollout_of(prepared, observed.all.note, running.agents)
                run = run_of(prepared, running, start.state, observed, rollout)
                await _train(run, running, start, observed)
    return Outcome(folder, observed.files.steps_before + observed.meter.steps, observed.evaluations.found)


def run_of(
    prepared: Prepared, running: RunProcesses, begins: RunState, observed: Observed, rollout: GroupRollout
) -> Run:
    config = prepared.config
    return Run(
        config=config.control,
        group_size=config.rollout.group_size,
        seed=config.seed,
        tasks=observed.tasks,
        rollout=rollout,
        judge=running.judge,
        engines={engine_name(index): engine for index, engine in enumerate(running.engines)},
        trainer=running.trainer,
        observer=observed.all,
        max_running=config.engine.max_running,
        max_sessions=config.rollout.max_sessions if running.agents else 10**9,
        begins=begins,
    )


async def _train(run: Run, running: RunProcesses, start: Start, observed: Observed) -> None:
    """The loop with what goes on beside it: engines watched, versions evaluated, checkpoints kept."""
    config, trainer, everybody = running.prepared.config, running.trainer, observed.all
    latest = await trainer.publish()
    await run.begin(latest)
    start.begun(running.prepared)
    beside = None
    if evaluator := running.evaluator():
        beside = EvaluateBeside(evaluator, config.evaluate.every, everybody)
        everybody.add(beside)
        if latest.version not in observed.files.evaluated_versions:
            await beside.published(latest)
    patience_s = config.control.patience_s
    checkpointer = Checkpointer(trainer, start.folder, config.train.save_every, everybody, patience_s, run.delivered)
    everybody.add(checkpointer)
    freeze_heap()
    observed.meter.begin(await idle_s(running.engines))
    try:
        async with (
            saved(checkpointer.checkpoint, trainer.written, checkpointer.weights),
            background(watch_engines(running, everybody)),
        ):
            await control_train(run)
            if beside:
                everybody.doing("controller", "waits for the last evaluation")
                await beside.last()
            await poll_engines(running, everybody)
    finally:
        if beside:
            beside.cancel()


async def watch_engines(running: RunProcesses, observer: Observer) -> None:
    while True:
        await poll_engines(running, observer)
        await asyncio.sleep(_POLL_S)


async def idle_s(engines: Sequence[Engine]) -> float:
    """So far, mean over engines."""
    every = await together(*(engine.stats() for engine in engines))
    return sum(stats.idle_s for stats in every) / len(every)


async def poll_engines(running: RunProcesses, observer: Observer) -> None:
    """An engine that does not answer is the business of whoever waits for its answers."""
    for index, engine in enumerate(running.engines):
        with suppress(EngineError):
            observer.engine(f"engine {index}", await engine.stats())


def rollout_of(
    prepared: Prepared, note: Callable[[str], None] = lambda text: None, agents: AgentServices | None = None
) -> GroupRollout:
    config = prepared.config.rollout
    if agents:
        return agents.rollout(config.sampling(), config.group_size, note)
    return make_rollout(prepared.rollout, prepared.tokenizer, prepared.text, config.sampling(), config.group_size, note)


def _evaluator(
    prepared: Prepared, judge: JudgeService, engine: HttpEngine, agents: AgentServices | None, beside: bool = True
) -> Evaluator:
    """`beside`: while training goes on."""
    config = prepared.config
    sampling, samples = config.rollout.sampling(temperature=config.evaluate.temperature), config.evaluate.samples
    rollout: GroupRollout
    if agents:
        rollout = agents.rollout(sampling, samples, beside=beside)
    else:
        rollout = make_rollout(prepared.rollout, prepared.tokenizer, prepared.text, sampling, samples)
    return Evaluator(prepared.held_out, rollout, judge, engine, config.evaluate.pass_reward, config.seed)


async def evaluate(prepared: Prepared, progress: Callable[[], None]) -> Evaluation:
    """`freerun eval`: one engine, one judge service, every held-out task."""
    plan, folder = prepared.plan(RunKind.EVALUATE), create_folder(prepared)
    async with AsyncExitStack() as stack:
        scratch = stack.enter_context(scratch_folder())
        environments = await stack.enter_async_context(gpu_environments(plan, scratch, lambda _: None))
        processes = await stack.enter_async_context(Processes("freerun.run.child", folder.logs))
        judge = await stack.enter_async_context(JudgeService(plan.reward))
        agents = await stack.enter_async_context(agent_services(prepared, folder.logs))
        starter = Starter(prepared.config, plan, processes, environments, scratch)
        engine = await stack.enter_async_context(HttpEngine(await starter.engine(plan.engines[0]), starter.key))
        async with background(processes.watch()):
            return await _evaluator(prepared, judge, engine, agents, beside=False).evaluate(progress)
