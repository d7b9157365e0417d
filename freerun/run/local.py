"""A run on this machine: every part a process of its own, wired to the controller, ended with it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex

from freerun.control.controller import Run
from freerun.control.controller import train as control_train
from freerun.control.dealer import Dealer
from freerun.control.evaluate import EvaluateBeside, Evaluator
from freerun.control.ledger import MemoryLedger
from freerun.control.solved import SolvedTasks
from freerun.control.waiting import background, together
from freerun.core import EngineError, TrainerError
from freerun.core.reports import Evaluation, WeightsHandle
from freerun.engines.base import Engine
from freerun.engines.http import HttpEngine
from freerun.machine.garbage import freeze_heap
from freerun.machine.processes import Processes
from freerun.machine.scratch import scratch_folder
from freerun.observe.folder import RunFolder
from freerun.observe.live import view
from freerun.observe.recorder import Recorder
from freerun.observe.records import StepRecord
from freerun.observe.report import reported
from freerun.plan.placement import rank_name
from freerun.rewards.service import JudgeService
from freerun.rollouts.base import Rollout
from freerun.rollouts.single_turn import SingleTurn
from freerun.run.assignment import GpuAssignment, assigned_gpus, judging
from freerun.run.checkpoints import Checkpointer, saved
from freerun.run.child import ENGINE_KEY, EngineSettings, TrainerSettings
from freerun.run.prepare import Prepared
from freerun.run.start import Start, create_folder
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

    def evaluator(self) -> Evaluator | None:
        return _evaluator(self.prepared, self.judge, self.evaluation_engine) if self.evaluation_engine else None


@asynccontextmanager
async def parts(
    prepared: Prepared,
    folder: RunFolder,
    evaluates: bool,
    generates: bool = True,
    checkpoint: Path | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[RunProcesses]:
    """Start everything at the same time, and end it all on leaving. A process that dies fails the block."""
    async with AsyncExitStack() as stack:
        scratch = stack.enter_context(scratch_folder())
        assigned = await stack.enter_async_context(assigned_gpus(prepared, scratch, generates, evaluates, note))
        processes = await stack.enter_async_context(Processes("freerun.run.child", folder.logs))
        names = [f"engine {index}" for index in range(len(assigned.engines))]
        key = token_hex()
        starting = [start_engine(prepared, processes, key, *one) for one in zip(names, assigned.engines, strict=True)]
        if assigned.evaluator:
            starting.append(start_engine(prepared, processes, key, "evaluator", assigned.evaluator))
        judge = JudgeService(assigned.judging(prepared.config), log=folder.logs / "judge.log")
        _, endpoint, *urls = await together(
            stack.enter_async_context(judge),
            start_trainer(prepared, processes, scratch, assigned.ranks, checkpoint, generates),
            *starting,
        )
        engines = [await stack.enter_async_context(HttpEngine(str(url), key)) for url in urls]
        remote = stack.enter_context(RemoteTrainer(str(endpoint)))
        evaluation_engine = engines.pop() if assigned.evaluator else None
        async with background(processes.watch()):
            try:
                yield RunProcesses(prepared, engines, remote, judge, evaluation_engine)
            except (EngineError, TrainerError):
                with suppress(TimeoutError):  # when a process of theirs died, that is the first cause
                    await asyncio.wait_for(processes.watch(), _LAST_WORDS_S)
                raise


async def start_trainer(
    prepared: Prepared,
    processes: Processes,
    scratch: Path,
    given: list[GpuAssignment],
    checkpoint: Path | None,
    generates: bool,
) -> str:
    """All ranks, at the same time: each waits for the others. Supervised training is at temperature 1: nothing in it is
    sampled."""
    config = prepared.config
    first = TrainerSettings(
        config.model.path,
        config.train.plain(),
        config.rollout.temperature if generates else 1.0,
        config.seed,
        config.rollout.max_new_tokens,
        f"ipc://{scratch}/trainer",
        str(scratch),
        str(checkpoint) if checkpoint else None,
        rendezvous=str(scratch / "ranks"),
    )
    ranks = [replace(first, rank=rank, memory_share=seat.share) for rank, seat in enumerate(given)]
    endpoint, *_ = await together(
        *(
            processes.start(rank_name(settings.rank), "trainer", settings, config.train.threads, seat.environment)
            for settings, seat in zip(ranks, given, strict=True)
        )
    )
    return endpoint


async def start_engine(prepared: Prepared, processes: Processes, key: str, name: str, seat: GpuAssignment) -> str:
    """It listens to whoever has the key: this run, and nobody else on the machine."""
    config = prepared.config
    share = config.engine.memory_share if seat.share is None else seat.share
    engine = config.engine.model_copy(update={"memory_share": share})
    settings = EngineSettings(config.model.path, engine.plain())
    environment = {**seat.environment, ENGINE_KEY: key}
    return await processes.start(name, "engine", settings, config.engine.threads, environment)


@dataclass
class Outcome:
    """What a training run came to."""

    folder: RunFolder
    steps: list[StepRecord]
    evaluations: list[Evaluation]


async def train(prepared: Prepared, start: Start | None = None) -> Outcome:
    """The whole run, or the rest of it."""
    config = prepared.config
    start = start or Start(create_folder(prepared))
    start = replace(start, state=replace(start.state, model=prepared.identity))
    evaluations: list[Evaluation] = []
    with start.opened() as folder:
        live = view(folder.name, config.control.steps, config.control.max_staleness)
        ledger = MemoryLedger(start.state.tally)
        recorder = Recorder(folder, live, ledger, prepared.text, config.train.skip_truncated)
        with reported(folder, config.control.max_staleness), recorder:
            if start.checkpoint:
                recorder.goes_on(start.checkpoint)
            for told in start.notes:
                recorder.note(told)
            live.doing("controller", "starts engine, trainer and reward workers")
            if note := prepared.held_out_overlap:
                recorder.note(note)
            evaluates = bool(config.evaluate.every)
            begun = parts(prepared, folder, evaluates, checkpoint=start.checkpoint, note=recorder.note)
            async with begun as running:
                run = run_of(prepared, running, start, ledger, recorder, single_turn(prepared))
                recorder.buffer, recorder.tasks = run.buffer, run.tasks
                await _train(run, running, start, recorder, evaluations)
    return Outcome(folder, recorder.steps, evaluations)


def run_of(
    prepared: Prepared, running: RunProcesses, start: Start, ledger: MemoryLedger, recorder: Recorder, rollout: Rollout
) -> Run:
    config, stream = prepared.config, prepared.stream(prepared.config.control.epochs)
    stream.seek(start.state.position)
    solved = SolvedTasks(config.control.rest_solved, config.evaluate.pass_reward, start.state.resting)
    return Run(
        config=config.control,
        group_size=config.rollout.group_size,
        seed=config.seed,
        tasks=Dealer(stream, start.state.owed, solved),
        rollout=rollout,
        judge=running.judge,
        engines=list(running.engines),
        trainer=running.trainer,
        ledger=ledger,
        observer=recorder,
        max_running=config.engine.max_running * len(running.engines),
        begins=start.state,
    )


async def _train(
    run: Run, running: RunProcesses, start: Start, recorder: Recorder, evaluations: list[Evaluation]
) -> None:
    """The loop with what goes on beside it: engines watched, versions evaluated, checkpoints kept."""
    config, trainer = running.prepared.config, running.trainer
    latest = await trainer.publish()
    if latest.version:  # engines begin with the model, which is version 0
        await together(*(engine.update_weights(latest) for engine in running.engines))
    start.begun(running.prepared)

    def evaluated(version: int, evaluation: Evaluation) -> None:
        evaluations.append(evaluation)
        recorder.evaluated(version, evaluation)

    async def remember(handle: WeightsHandle) -> None:
        nonlocal latest
        latest = handle

    run.on_publish.append(remember)
    beside = None
    if evaluator := running.evaluator():
        beside = EvaluateBeside(evaluator, config.evaluate.every, evaluated, recorder)
        run.on_publish.append(beside.published)
        if latest.version not in recorder.evaluated_versions:
            await beside.published(latest)
    checkpointer = Checkpointer(
        trainer, start.folder, config.train.save_every, recorder, config.control.patience_s, run.delivered
    )
    run.on_settle.append(checkpointer.settled)
    freeze_heap()
    recorder.begin(await idle_s(running.engines))
    try:
        async with (
            saved(checkpointer.checkpoint, trainer.written, checkpointer.weights),
            background(watch_engines(running, recorder)),
        ):
            await control_train(run)
            if beside:
                recorder.doing("controller", "waits for the last evaluation")
                await beside.last(latest)
            await poll_engines(running, recorder)
    finally:
        if beside:
            beside.cancel()


async def watch_engines(running: RunProcesses, recorder: Recorder) -> None:
    while True:
        await poll_engines(running, recorder)
        await asyncio.sleep(_POLL_S)


async def idle_s(engines: Sequence[Engine]) -> float:
    """So far, mean over engines."""
    every = await together(*(engine.stats() for engine in engines))
    return sum(stats.idle_s for stats in every) / len(every)


async def poll_engines(running: RunProcesses, recorder: Recorder) -> None:
    """An engine that does not answer is the business of whoever waits for its answers."""
    for index, engine in enumerate(running.engines):
        with suppress(EngineError):
            recorder.engine_stats(f"engine {index}", await engine.stats())


def single_turn(prepared: Prepared) -> SingleTurn:
    config = prepared.config.rollout
    return SingleTurn(prepared.text, config.sampling(), config.group_size)


def _evaluator(prepared: Prepared, judge: JudgeService, engine: HttpEngine) -> Evaluator:
    config = prepared.config
    sampling = config.rollout.sampling(temperature=config.evaluate.temperature)
    rollout = SingleTurn(prepared.text, sampling, config.evaluate.samples)
    return Evaluator(prepared.held_out, rollout, judge, engine, config.evaluate.pass_reward, config.seed)


async def evaluate(prepared: Prepared, progress: Callable[[], None]) -> Evaluation:
    """`freerun eval`: one engine, one judge service, every held-out task."""
    folder = create_folder(prepared)
    reward = judging(prepared.config, engines=1, ranks=0)
    async with Processes("freerun.run.child", folder.logs) as processes, JudgeService(reward) as judge:
        key = token_hex()
        url = await start_engine(prepared, processes, key, "engine 0", GpuAssignment())
        async with HttpEngine(url, key) as engine, background(processes.watch()):
            return await _evaluator(prepared, judge, engine).evaluate(progress)
