"""Who observes a run: what measures its steps, its files, the terminal, and whoever else was named."""

import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass

from freerun.control.solved import SolvedTasks
from freerun.control.task_queue import TaskQueue
from freerun.core import Version
from freerun.core.groups import Position
from freerun.core.observer import Observer, Observers
from freerun.core.reports import Evaluation
from freerun.core.state import RunState
from freerun.observe.book import KeptBook
from freerun.observe.book_tables import Begun
from freerun.observe.files import RunFiles
from freerun.observe.folder import JsonLines
from freerun.observe.loggers.apart import Loggers
from freerun.observe.meter import StepMeter
from freerun.observe.records import NoteRecord
from freerun.observe.samples import KeptSamples
from freerun.run.prepare import Prepared
from freerun.run.start import Start
from freerun.train.checkpoint_folder import CheckpointFolder


@dataclass
class Observed:
    all: Observers
    meter: StepMeter
    files: RunFiles
    samples: KeptSamples
    book: KeptBook
    evaluations: "Evaluations"
    tasks: TaskQueue

    def begin(self) -> None:
        """The run goes on from here: from now on its files are written."""
        self.files.begin()
        self.samples.begin()

    @classmethod
    def by(
        cls, prepared: Prepared, start: Start, others: Iterable[Observer], guests: Iterable[Observer] = ()
    ) -> "Observed":
        goes_on_from = None if start.may_write else start.state.version
        files, evaluations = RunFiles(start.folder, goes_on_from), Evaluations()
        everybody = Observers([], guests)
        book = book_of(prepared, start, everybody)
        tasks = tasks_of(prepared, start.state, book.rested)
        gib, last_step = prepared.config.keep_samples_gib, start.state.version
        samples = KeptSamples(start.folder.samples, prepared.text, everybody, gib, last_step, start.may_write)
        meter = StepMeter(
            everybody,
            files.begun_s,
            before=start.state.tally,
            solved=lambda: len(tasks.solved),
            skip_truncated=prepared.config.train.skip_truncated,
            agents_before=files.before.agents if files.before else None,
        )
        for observer in (meter, book, samples, files, evaluations, *others):
            everybody.add(observer)
        return cls(everybody, meter, files, samples, book, evaluations, tasks)


@asynccontextmanager
async def observing(
    prepared: Prepared, start: Start, others: Iterable[Observer], guests: Iterable[Observer] = ()
) -> AsyncIterator[Observed]:
    """Everybody, closed in the end; loggers are given the time to finish after that."""
    async with logging_to(prepared, start) as loggers:
        observed = Observed.by(prepared, start, others, [*prepared.guests.observers, *guests, loggers])
        with closing(observed.all):
            loggers.tell_to(observed.all.note)
            yield observed


@asynccontextmanager
async def logging_to(prepared: Prepared, start: Start) -> AsyncIterator[Loggers]:
    """The loggers that the configuration names. What is to be said of them when all observers are closed is written to
    the run's notes, and printed."""
    config = prepared.config.model_dump(mode="json")
    loggers = Loggers(prepared.guests.loggers, start.folder, config, start.state.version)
    try:
        async with loggers:
            yield loggers
    finally:
        for text in loggers.untold:
            print(f"note: {text}", file=sys.stderr)
            if not start.may_write:
                continue
            with JsonLines(start.folder.notes) as notes:
                notes.append(NoteRecord(*loggers.now, text))


class Evaluations(Observer):
    """Remembers every evaluation."""

    def __init__(self) -> None:
        self.found: list[Evaluation] = []

    def evaluated(self, version: Version, evaluation: Evaluation) -> None:
        self.found.append(evaluation)


def book_of(prepared: Prepared, start: Start, tell: Observer) -> KeptBook:
    """The book of groups in run.db, from where this run begins."""
    kept = frozenset(group.id for _, group in start.ready)
    begun = Begun(start.state.version, start.after, len(prepared.tasks), kept)
    checkpoints = CheckpointFolder(start.folder.checkpoints)
    return KeptBook(start.folder.samples, begun, tell, lambda: min(checkpoints.finished(), default=0))


def tasks_of(
    prepared: Prepared, state: RunState, rested: Callable[[Position, str], None] = lambda position, task: None
) -> TaskQueue:
    """The tasks that are left to ask."""
    config, stream = prepared.config, prepared.stream(prepared.config.control.epochs)
    stream.seek(state.position)
    solved = SolvedTasks(config.control.skip_solved, config.evaluate.pass_reward, state.resting)
    return TaskQueue(stream, state.owed, solved, rested)
