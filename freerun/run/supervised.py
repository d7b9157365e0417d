"""`freerun sft`: the trainer, and an engine to look how good it is when there is something to look at."""

from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack, closing
from itertools import islice

from freerun.control.sft import sft as control_sft
from freerun.core import Batch, FreerunError, Group, Version
from freerun.core.observer import Observer, Observers
from freerun.core.state import RunState
from freerun.data.stream import TaskStream
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
from freerun.run.hosts import Hosts, hosts_of
from freerun.run.kept_batches import BatchesInMemory
from freerun.run.observed import logging_to
from freerun.run.prepare import Prepared, example_of
from freerun.run.running import run_processes
from freerun.run.start import Start

_FEW_SAMPLES = 0.0
"""GiB: the data has the examples; a few of each step show what is learned from."""


async def sft(prepared: Prepared, observers: Iterable[Observer] = (), start: Start | None = None) -> RunFolder:
    """All of it, or the rest of it."""
    start = start or begin(prepared)
    with gone_if_nothing_was_done(start), ended(start.folder):
        return await _sft(prepared, observers, start)


async def _sft(prepared: Prepared, observers: Iterable[Observer], start: Start) -> RunFolder:
    config = prepared.config
    stream = prepared.stream(epochs=None)
    stream.seek(start.state.position)
    identity = prepared.identity

    async def plan_on(hosts: Hosts) -> Plan:
        machines = start.placed(await hosts.machines())
        return prepared.plan(RunKind.SFT, evaluates=config.sft.until is not None, machines=machines)

    def state_at(version: Version) -> RunState:
        position, data = stream.position, stream.fingerprint
        return RunState(version, position=position, data=data, supervised=True, model=identity)

    async with AsyncExitStack() as stack:
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
            for told in start.notes:
                everybody.note(told)
            async with (
                hosts_of(config, everybody.note) as hosts,
                run_processes(hosts, prepared, folder, await plan_on(hosts), start.checkpoint) as running,
            ):
                trainer, begins = running.trainer, start.state.version
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
                batches = _batches(stream, prepared, begins)
                async with saved(checkpointer.checkpoint, checkpointer.written, checkpointer.weights):
                    good = await control_sft(
                        *(config.sft, trainer, batches, evaluator_of(running), everybody, state_at, begins),
                        steps=config.control.steps,
                        evaluate_every=config.evaluate.every or 50,
                    )
        if not good:
            steps = config.control.steps
            raise FreerunError(
                f"after {steps} steps pass@1 is below sft.until={config.sft.until}; the model so far is in "
                f"{folder.checkpoints / 'last'}: go on with freerun resume {folder.path} control.steps={2 * steps}"
            )
    return folder


def _batches(stream: TaskStream, prepared: Prepared, version: Version) -> Iterator[Batch]:
    """Examples in shuffled order, epoch after epoch, a group each. Those of a batch are taken from the stream when it
    is."""
    while True:
        tasks = islice(stream, prepared.config.control.groups_per_step)
        yield Batch(version, [Group(i, task, [example_of(task, prepared)], version) for i, task in enumerate(tasks)])
        version += 1
