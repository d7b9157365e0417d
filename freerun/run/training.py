"""A training run: its processes, wired to the controller and ended with it, wherever they are."""

import asyncio
import sys
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import cached_property

from freerun.config.tree import RunConfig
from freerun.control.controller import Run
from freerun.control.controller import train as control_train
from freerun.control.evaluate import EvaluateBeside
from freerun.control.waiting import background, together
from freerun.core import ProcessDied, Version
from freerun.core.observer import Observer
from freerun.core.records import StepRecord
from freerun.core.reports import Evaluation
from freerun.core.section import by_dotted_key
from freerun.core.state import RunState
from freerun.machine.garbage import freeze_heap
from freerun.observe.book_reader import BookReader
from freerun.observe.folder import RunFolder
from freerun.observe.live import view
from freerun.observe.records import read_steps
from freerun.observe.report import reported
from freerun.observe.status import StatusFile, ended
from freerun.observe.why import cost_most
from freerun.plan.placement import EVALUATOR
from freerun.rollouts.base import GroupRollout
from freerun.rollouts.load import make_rollout
from freerun.run.agents import AgentServices
from freerun.run.begin import begin, gone_if_nothing_was_done
from freerun.run.checkpoints import Checkpointer, saved
from freerun.run.evaluating import evaluator_of
from freerun.run.given import check_model
from freerun.run.guests import load_guests
from freerun.run.hosts import Hosts, hosts_of
from freerun.run.kept import Joined
from freerun.run.kept_batches import BookBatches
from freerun.run.notes import notes_of
from freerun.run.observed import Observed, observing
from freerun.run.prepare import Prepared
from freerun.run.resume import again
from freerun.run.running import RunProcesses, run_processes
from freerun.run.start import Start
from freerun.run.wanted import engines_wanted, with_wanted

_POLL_S = 0.25
_MOST_LOSSES = 3
"""How often a trainer may be lost at the same step before the run ends."""


@dataclass
class Outcome:
    """What a training run came to."""

    folder: RunFolder
    evaluations: list[Evaluation]

    @cached_property
    def steps(self) -> list[StepRecord]:
        return read_steps(self.folder.metrics)


async def train(prepared: Prepared, start: Start | None = None, guests: Iterable[Observer] = ()) -> Outcome:
    """The whole run, or the rest of it. `guests` observe it besides the run's folder and the terminal."""
    start = start or begin(prepared)
    with gone_if_nothing_was_done(start):
        return await _train_until_done(prepared, start, guests)


async def _train_until_done(prepared: Prepared, start: Start, guests: Iterable[Observer]) -> Outcome:
    """With another trainer where one is lost, if the run is to wait for it."""
    waits = prepared.config.cluster.trainer_lost == "wait"
    async with AsyncExitStack() as stack:
        stack.enter_context(ended(start.folder))
        hosts = await stack.enter_async_context(hosts_of(prepared.config, _say))
        lost_at: list[Version] = []
        while True:
            try:
                return await _train_on(hosts, prepared, start, guests)
            except ProcessDied as died:
                if not hosts.apart or not waits:
                    raise
                start = again(start, prepared)
                lost_at = [version for version in lost_at if version == start.state.version] + [start.state.version]
                if len(lost_at) > _MOST_LOSSES:
                    raise
                config = with_wanted(prepared.config, start.folder)
                prepared = replace(
                    prepared, config=config, guests=load_guests(config.observers)
                )  # those there were are closed
                hosts.tell(_say)
                _say(f"{died}: the run goes on from step {start.state.version} when its machines are there")


def _say(told: str) -> None:
    print(told, file=sys.stderr)


async def _train_on(hosts: Hosts, prepared: Prepared, start: Start, guests: Iterable[Observer]) -> Outcome:
    """As long as the trainer lives."""
    config = prepared.config
    start = replace(start, state=replace(start.state, model=prepared.identity))
    with (
        start.opened() as folder,
        reported(folder, lambda: start.may_write),
        StatusFile(folder, start.state.version).kept() as status,
    ):
        live = view(folder.name, config.control.steps, config.control.max_staleness)
        async with observing(prepared, start, [live, status], guests) as observed:
            await _train_observed(hosts, prepared, start, observed)
    return Outcome(folder, observed.evaluations.found)


async def _train_observed(hosts: Hosts, prepared: Prepared, start: Start, observed: Observed) -> None:
    config, note = prepared.config, observed.all.note
    for told in [*start.notes, *notes_of(prepared)]:
        note(told)
    hosts.tell(note)
    if hosts.apart:
        observed.all.doing("controller", f"waits for {config.resources.machines} machine(s) to join")
    machines = start.placed(await hosts.machines())
    plan = prepared.plan(evaluates=bool(config.evaluate.every), machines=machines)
    observed.all.doing("controller", "starts engine, trainer and reward workers")
    async with run_processes(hosts, prepared, start.folder, plan, start.checkpoint, note) as running:
        rollout = rollout_of(prepared, note, running.agents)
        run = run_of(prepared, running, start.state, observed, rollout, start)
        await _train(run, running, start, observed)


def run_of(
    prepared: Prepared,
    running: RunProcesses,
    begins: RunState,
    observed: Observed,
    rollout: GroupRollout,
    start: Start | None = None,
) -> Run:
    config = prepared.config
    return Run(
        config=config.control,
        group_size=config.rollout.group_size,
        seed=config.seed,
        tasks=observed.tasks,
        rollout=rollout,
        judge=running.judge,
        judge_load=lambda: running.judge.load,
        teacher=running.teacher,
        engines=running.engines,
        engines_may_join=running.kept.any,
        restart=running.kept.restart,
        trainer=running.trainer,
        observer=observed.all,
        max_running=config.engine.max_running,
        max_sessions=config.rollout.max_sessions if running.agents else 10**9,
        begins=begins,
        ready=start.ready if start else (),
        used=start.used if start else (),
    )


async def _train(run: Run, running: RunProcesses, start: Start, observed: Observed) -> None:
    """The loop with what goes on beside it: engines watched, versions evaluated, checkpoints kept."""
    config, trainer, everybody = running.prepared.config, running.trainer, observed.all
    batches = BookBatches(observed.book, BookReader(start.folder.samples), config.control)
    everybody.add(batches)
    trainer.serve(everybody, batches)
    latest = await trainer.reach(start.state.version)
    for given in running.kept.given:
        await check_model(given, trainer)
    await run.begin(latest)
    if not start.may_write:
        start.begun(running.prepared)
        observed.begin()
    observed.book.begin()
    beside = None
    if evaluator := evaluator_of(running):
        beside = EvaluateBeside(evaluator, config.evaluate.every, everybody, running.kept.restart)
        everybody.add(beside)
        if latest.version not in observed.files.evaluated_versions:
            await beside.published(latest)
    trainer.serve(everybody, batches, [run.fleet, *([beside] if beside else [])])
    patience_s = config.control.patience_s
    every, keep = config.train.save_every, config.train.keep
    checkpointer = Checkpointer(
        trainer, start.folder, every, everybody, patience_s, keep, run.delivered, observed.book.flush, start.redone
    )
    everybody.add(checkpointer)
    freeze_heap()
    observed.meter.begin(await run.fleet.idle_s())
    try:
        async with (
            saved(checkpointer.checkpoint, checkpointer.written, checkpointer.weights),
            background(watch(run, running, beside)),
            background(_keep_engines(run, beside, running, start.folder)),
        ):
            await control_train(run)
            _say_what_cost_most(start.folder, config, everybody)
            if beside:
                everybody.doing("controller", "waits for the last evaluation")
                await beside.last()
            await run.fleet.poll()
    finally:
        if beside:
            beside.cancel()
        for span in running.spans(every=True):
            everybody.span(span)


def _say_what_cost_most(folder: RunFolder, config: RunConfig, everybody: Observer) -> None:
    with folder.metrics.open("rb") as metrics:
        if told := cost_most(metrics, by_dotted_key(config.model_dump(mode="json"))):
            everybody.note(told)


async def _keep_engines(run: Run, beside: EvaluateBeside | None, running: RunProcesses, folder: RunFolder) -> None:
    """Have engines started again that end, more on machines that join, and as many as the run's folder says."""
    others: dict[str, Joined] = {EVALUATOR: beside} if beside else {}
    wanted = engines_wanted(folder, running.prepared.config, run.observer.note)
    await running.kept.keep(run, others, running.hosts.newcomers(), wanted, run.observer.engines_wanted)


async def watch(run: Run, running: RunProcesses, beside: EvaluateBeside | None = None) -> None:
    """Have everybody told how the engines are doing, and when judges and agents were busy."""
    while True:
        await together(run.fleet.poll(), *([beside.poll()] if beside else []))
        for span in running.spans():
            run.observer.span(span)
        await asyncio.sleep(_POLL_S)


def rollout_of(
    prepared: Prepared, note: Callable[[str], None] = lambda text: None, agents: AgentServices | None = None
) -> GroupRollout:
    config = prepared.config.rollout
    sampling = config.sampling(routes=prepared.config.train.replay_router)
    if agents:
        return agents.rollout(sampling, config.group_size, note)
    return make_rollout(prepared.rollout, prepared.tokenizer, prepared.text, sampling, config.group_size, note)
