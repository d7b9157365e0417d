"""Learning from what is given: the trainer, and for `freerun sft` an engine to look how good it is when there is
something to look at. What is learned, and how, is a `Lesson`; that of `freerun dpo` is in `preferences.py`."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from typing import Protocol

from freerun.control.sft import sft as control_sft
from freerun.core import Batch, FreerunError, Sample, Task, Version
from freerun.core.observer import Observer, Observers
from freerun.core.state import RunState
from freerun.observe.files import RunFiles
from freerun.observe.folder import RunFolder
from freerun.observe.meter import StepMeter
from freerun.observe.report import reported
from freerun.observe.samples import KeptSamples
from freerun.observe.status import StatusFile, ended
from freerun.plan.placement import RunKind
from freerun.plan.plan import Plan
from freerun.run.begin import begin, gone_if_nothing_was_done
from freerun.run.checkpoints import Checkpointer, saved
from freerun.run.evaluating import evaluator_of
from freerun.run.examples_ahead import ExamplesAhead
from freerun.run.hosts import Hosts, hosts_of
from freerun.run.kept_batches import BatchesInMemory
from freerun.run.observed import logging_to
from freerun.run.prepare import Prepared, example_of
from freerun.run.running import RunProcesses, run_processes
from freerun.run.start import Start

_FEW_SAMPLES = 0.0
"""GiB: the data has the examples; a few of each step show what is learned from."""


@dataclass(frozen=True)
class Learning:
    """A lesson that is going on."""

    running: RunProcesses
    batches: Iterator[Batch]
    observer: Observer
    state_at: Callable[[Version], RunState]
    start: Start


class Lesson(Protocol):
    @property
    def kind(self) -> RunKind: ...

    @property
    def evaluates(self) -> bool:
        """Whether an engine answers held-out tasks."""
        ...

    def examples(self, task: Task) -> list[Sample]: ...

    async def begin(self, running: RunProcesses, start: Start, observer: Observer) -> None:
        """What must be there before the first step."""
        ...

    async def learn(self, learning: Learning) -> FreerunError | None:
        """What the run fails with in the end, its model saved, where it fell short of what was asked."""
        ...


@dataclass(frozen=True)
class Sft:
    prepared: Prepared

    kind = RunKind.SFT

    @property
    def evaluates(self) -> bool:
        return self.prepared.config.sft.until is not None

    def examples(self, task: Task) -> list[Sample]:
        return [example_of(task, self.prepared)]

    async def begin(self, running: RunProcesses, start: Start, observer: Observer) -> None:
        return None

    async def learn(self, learning: Learning) -> FreerunError | None:
        config, begins = self.prepared.config, learning.start.state.version
        trainer, evaluator = learning.running.trainer, evaluator_of(learning.running)
        good = await control_sft(
            *(config.sft, trainer, learning.batches, evaluator, learning.observer, learning.state_at, begins),
            steps=config.control.steps,
            evaluate_every=config.evaluate.every or 50,
        )
        if good:
            return None
        steps, folder = config.control.steps, learning.start.folder
        return FreerunError(
            f"after {steps} steps pass@1 is below sft.until={config.sft.until}; the model so far is in "
            f"{folder.checkpoints / 'last'}: go on with freerun resume {folder.path} control.steps={2 * steps}"
        )


async def sft(prepared: Prepared, observers: Iterable[Observer] = (), start: Start | None = None) -> RunFolder:
    """All of it, or the rest of it."""
    return await learned(Sft(prepared), prepared, observers, start)


async def learned(
    lesson: Lesson, prepared: Prepared, observers: Iterable[Observer] = (), start: Start | None = None
) -> RunFolder:
    """The whole lesson, or the rest of it."""
    start = start or begin(prepared)
    with gone_if_nothing_was_done(start), ended(start.folder):
        return await _learned(lesson, prepared, observers, start)


async def _learned(lesson: Lesson, prepared: Prepared, observers: Iterable[Observer], start: Start) -> RunFolder:
    config = prepared.config
    stream = prepared.stream(epochs=None)
    stream.seek(start.state.position)
    identity = prepared.identity
    batches = ExamplesAhead(stream, lesson.examples, config.control.groups_per_step, start.state.version)

    async def plan_on(hosts: Hosts) -> Plan:
        machines = start.placed(await hosts.machines())
        return prepared.plan(lesson.kind, evaluates=lesson.evaluates, machines=machines)

    def state_at(version: Version) -> RunState:
        position, data = batches.position, stream.fingerprint
        preferences = lesson.kind is RunKind.DPO
        return RunState(version, position=position, data=data, supervised=True, preferences=preferences, model=identity)

    async with AsyncExitStack() as stack:
        stack.enter_context(batches)
        folder = stack.enter_context(start.opened())
        stack.enter_context(reported(folder, lambda: start.may_write))
        status = stack.enter_context(StatusFile(folder, start.state.version).kept())
        loggers = await stack.enter_async_context(logging_to(prepared, start))
        goes_on_from = None if start.may_write else start.state.version
        files, everybody = RunFiles(folder, goes_on_from), Observers([], [*prepared.guests.observers, loggers])
        samples = KeptSamples(
            folder.samples, prepared.text, everybody, _FEW_SAMPLES, start.state.version, start.may_write
        )
        for observer in (StepMeter(everybody, files.begun_s), samples, files, status, *observers):
            everybody.add(observer)
        with closing(everybody):
            loggers.tell_to(everybody.note)
            for told in [*start.notes, *filter(None, [prepared.unused_warning])]:
                everybody.note(told)
            async with (
                hosts_of(config, everybody.note) as hosts,
                run_processes(hosts, prepared, folder, await plan_on(hosts), start.checkpoint) as running,
            ):
                trainer = running.trainer
                await lesson.begin(running, start, everybody)
                if not start.may_write:
                    start.begun(prepared)
                    files.begin()
                    samples.begin()
                patience_s = config.control.patience_s
                every, keep = config.train.save_every, config.train.keep
                checkpointer = Checkpointer(trainer, folder, every, everybody, patience_s, keep)
                everybody.add(checkpointer)
                batches_kept = BatchesInMemory(folder)
                everybody.add(batches_kept)
                trainer.serve(everybody, batches_kept)
                async with saved(checkpointer.checkpoint, checkpointer.written, checkpointer.weights):
                    failed = await lesson.learn(Learning(running, batches, everybody, state_at, start))
        if failed:
            raise failed
    return folder
