"""A run on this machine: every part a process of its own, wired to the controller, ended with it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from freerun.config.load import dump
from freerun.control.controller import Run
from freerun.control.controller import train as control_train
from freerun.control.evaluate import EvaluateBeside, Evaluation, Evaluator
from freerun.control.ledger import MemoryLedger
from freerun.control.sft import sft as control_sft
from freerun.control.waiting import background, together
from freerun.core import EngineError, FreerunError, Sample
from freerun.data.stream import TaskStream
from freerun.engines.http import HttpEngine
from freerun.launch.child import EngineSettings, TrainerSettings
from freerun.launch.prepare import Prepared, example_of
from freerun.launch.processes import Processes
from freerun.launch.recorder import Recorder
from freerun.launch.scratch import scratch_folder
from freerun.observe.folder import JsonLines, RunFolder
from freerun.observe.live import LiveView, view
from freerun.observe.records import StepRecord
from freerun.observe.report import write_report
from freerun.rewards.service import JudgeService
from freerun.rollouts.base import Rollout
from freerun.rollouts.single_turn import SingleTurn
from freerun.train.base import StepResult
from freerun.train.remote import RemoteTrainer
from freerun.weights.base import WeightsHandle

_POLL_S = 0.25
_LAST_WORDS_S = 1.0
_LAST_SAVE_S = 2.5
"""How long an interrupted run may take to save what it has: Ctrl-C ends everything within five seconds."""


@dataclass
class Parts:
    """The processes of a run, as the controller reaches them."""

    prepared: Prepared
    engines: list[HttpEngine]
    trainer: RemoteTrainer
    judge: JudgeService
    evaluation_engine: HttpEngine | None

    def evaluator(self) -> Evaluator | None:
        return _evaluator(self.prepared, self.judge, self.evaluation_engine) if self.evaluation_engine else None


@asynccontextmanager
async def parts(prepared: Prepared, folder: RunFolder, num_engines: int, evaluates: bool) -> AsyncIterator[Parts]:
    """Start everything at the same time, and end it all on leaving. A process that dies fails the block."""
    config = prepared.config
    async with AsyncExitStack() as stack:
        scratch = stack.enter_context(scratch_folder())
        processes = await stack.enter_async_context(Processes(folder.logs))
        endpoint = f"ipc://{scratch}/trainer"
        trainer = TrainerSettings(
            config.model.path,
            config.train.model_dump(mode="json"),
            config.rollout.temperature,
            config.seed,
            endpoint,
            str(scratch),
        )
        names = [f"engine {index}" for index in range(num_engines)] + ["evaluator"] * evaluates
        judge = JudgeService(config.reward, log=folder.logs / "judge.log")
        _, _, *urls = await together(
            stack.enter_async_context(judge),
            processes.start("trainer", "trainer", trainer, config.train.threads),
            *(start_engine(prepared, processes, name, sharing=len(names)) for name in names),
        )
        engines = [await stack.enter_async_context(HttpEngine(str(url))) for url in urls]
        remote = stack.enter_context(RemoteTrainer(endpoint))
        async with background(processes.watch()):
            try:
                yield Parts(
                    prepared,
                    engines[:num_engines],
                    remote,
                    judge,
                    engines[num_engines] if evaluates else None,
                )
            except EngineError:
                with suppress(TimeoutError):  # when the engine's process died, that is the first cause
                    await asyncio.wait_for(processes.watch(), _LAST_WORDS_S)
                raise


async def start_engine(prepared: Prepared, processes: Processes, name: str, sharing: int = 1) -> str:
    """`sharing` engines divide the memory that the configuration gives to one."""
    config = prepared.config
    engine = config.engine.model_copy(update={"memory_share": config.engine.memory_share / sharing})
    settings = EngineSettings(config.model.path, engine.model_dump(mode="json"))
    return await processes.start(name, "engine", settings, config.engine.threads)


@dataclass
class Outcome:
    """What a training run came to."""

    folder: RunFolder
    steps: list[StepRecord]
    evaluations: list[Evaluation]


async def train(prepared: Prepared, live: LiveView | None = None, rollout: Rollout | None = None) -> Outcome:
    """The whole run. `rollout` replaces the configured one, for benchmarks."""
    config = prepared.config
    folder = create_folder(prepared)
    live = live or view(folder.name, config.control.steps, config.control.max_staleness)
    ledger = MemoryLedger()
    evaluations: list[Evaluation] = []
    recorder = Recorder(folder, live, ledger, prepared.tokenizer)
    try:
        with recorder:
            live.doing("controller", "starts engine, trainer and reward workers")
            async with parts(prepared, folder, 1, bool(config.evaluate.every)) as running:
                run = Run(
                    config=config.control,
                    group_size=config.rollout.group_size,
                    seed=config.seed,
                    tasks=TaskStream(
                        prepared.tasks, seed=config.seed, shuffle=config.data.shuffle, epochs=config.control.epochs
                    ),
                    rollout=rollout or single_turn(prepared),
                    judge=running.judge,
                    engines=list(running.engines),
                    trainer=running.trainer,
                    ledger=ledger,
                    observer=recorder,
                    max_running=config.engine.max_running * len(running.engines),
                )
                recorder.buffer = run.buffer
                if config.train.save_every:
                    run.on_publish.append(checkpoints(running.trainer, folder, config.train.save_every))
                await _train(run, running, recorder, evaluations, folder)
    finally:
        write_report(folder, config.control.max_staleness)
    return Outcome(folder, recorder.steps, evaluations)


async def _train(
    run: Run, running: Parts, recorder: Recorder, evaluations: list[Evaluation], folder: RunFolder
) -> None:
    """The loop with what goes on beside it: engines watched, versions evaluated, the last one saved."""
    latest = await running.trainer.publish()

    def evaluated(version: int, evaluation: Evaluation) -> None:
        evaluations.append(evaluation)
        recorder.evaluated(version, evaluation)

    async def remember(handle: WeightsHandle) -> None:
        nonlocal latest
        latest = handle

    run.on_publish.append(remember)
    beside = None
    if evaluator := running.evaluator():
        beside = EvaluateBeside(evaluator, running.prepared.config.evaluate.every, evaluated, recorder)
        run.on_publish.append(beside.published)
        await beside.begin(latest)
    recorder.begin()
    try:
        async with saved(running.trainer, folder), background(watch_engines(running, recorder)):
            await control_train(run)
            if beside:
                recorder.doing("controller", "waits for the last evaluation")
                await beside.last(latest)
            await poll_engines(running, recorder)
    finally:
        if beside:
            beside.cancel()


@asynccontextmanager
async def saved(trainer: RemoteTrainer, folder: RunFolder) -> AsyncIterator[None]:
    """The trainer's version is saved after the block, and also when the block is interrupted, if that goes quickly."""
    last = str(folder.checkpoints / "last")
    try:
        yield
    except asyncio.CancelledError:
        with suppress(TimeoutError):
            await asyncio.wait_for(trainer.save(last), _LAST_SAVE_S)
        raise
    await trainer.save(last)


def checkpoints(trainer: RemoteTrainer, folder: RunFolder, every: int) -> Callable[[WeightsHandle], Awaitable[None]]:
    """Saves every so many versions. Only the trainer is busy with it; generation goes on."""

    async def save(handle: WeightsHandle) -> None:
        if handle.version % every == 0:
            await trainer.save(str(folder.checkpoints / f"step-{handle.version}"))

    return save


async def watch_engines(running: Parts, recorder: Recorder) -> None:
    while True:
        await poll_engines(running, recorder)
        await asyncio.sleep(_POLL_S)


async def poll_engines(running: Parts, recorder: Recorder) -> None:
    """An engine that does not answer is the business of whoever waits for its answers."""
    for index, engine in enumerate(running.engines):
        with suppress(EngineError):
            recorder.engine_stats(f"engine {index}", await engine.stats())


def create_folder(prepared: Prepared) -> RunFolder:
    folder = RunFolder.create(Path(prepared.config.runs), prepared.config.name)
    folder.config.write_text(dump(prepared.config, prepared.origins))
    return folder


def single_turn(prepared: Prepared) -> SingleTurn:
    config = prepared.config.rollout
    return SingleTurn(prepared.tokenizer, config.sampling(), config.group_size)


def _evaluator(prepared: Prepared, judge: JudgeService, engine: HttpEngine) -> Evaluator:
    config = prepared.config
    sampling = config.rollout.sampling(temperature=config.evaluate.temperature)
    rollout = SingleTurn(prepared.tokenizer, sampling, config.evaluate.samples)
    return Evaluator(prepared.held_out, rollout, judge, engine, config.evaluate.pass_reward, config.seed)


async def evaluate(prepared: Prepared, progress: Callable[[], None]) -> Evaluation:
    """`freerun eval`: one engine, one judge service, every held-out task."""
    folder = create_folder(prepared)
    async with Processes(folder.logs) as processes, JudgeService(prepared.config.reward) as judge:
        url = await start_engine(prepared, processes, "engine 0")
        async with HttpEngine(url) as engine, background(processes.watch()):
            return await _evaluator(prepared, judge, engine).evaluate(progress)


async def sft(
    prepared: Prepared,
    stepped: Callable[[int, StepResult], None],
    evaluated: Callable[[int, Evaluation], None],
) -> RunFolder:
    """`freerun sft`: the trainer, and an engine to look how good it is when there is something to look at."""
    config = prepared.config
    folder = create_folder(prepared)
    with JsonLines(folder.metrics) as metrics:
        async with parts(prepared, folder, 0, config.sft.until is not None) as running:

            def record(result: StepResult) -> None:
                metrics.append({"step": result.version, **result.metrics})
                stepped(result.version, result)

            batches = _batches(prepared, config.sft.batch_size)
            async with saved(running.trainer, folder):
                good = await control_sft(config.sft, running.trainer, batches, running.evaluator(), record, evaluated)
    if not good:
        raise FreerunError(
            f"after {config.sft.steps} steps pass@1 is below sft.until={config.sft.until}; the model so far is in "
            f"{folder.checkpoints / 'last'}: go on from it, or raise sft.steps"
        )
    return folder


def _batches(prepared: Prepared, size: int) -> Iterator[list[Sample]]:
    """Examples in shuffled order, epoch after epoch."""
    config = prepared.config
    stream = TaskStream(prepared.tasks, seed=config.seed, shuffle=config.data.shuffle, epochs=None)
    examples = (example_of(task, prepared) for task in stream)
    while True:
        yield list(islice(examples, size))
