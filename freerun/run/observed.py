"""Who observes a run: what measures its steps, its files, the terminal, and whoever else was named."""

from collections.abc import Iterable
from dataclasses import dataclass

from freerun.control.solved import SolvedTasks
from freerun.control.task_queue import TaskQueue
from freerun.core import Version
from freerun.core.observer import Observer, Observers
from freerun.core.reports import Evaluation
from freerun.core.state import RunState
from freerun.observe.files import RunFiles
from freerun.observe.meter import StepMeter
from freerun.observe.samples import KeptSamples
from freerun.run.prepare import Prepared
from freerun.run.start import Start


@dataclass
class Observed:
    all: Observers
    meter: StepMeter
    files: RunFiles
    evaluations: "Evaluations"
    tasks: TaskQueue

    @classmethod
    def by(
        cls, prepared: Prepared, start: Start, others: Iterable[Observer], guests: Iterable[Observer] = ()
    ) -> "Observed":
        tasks, files, evaluations = tasks_of(prepared, start.state), RunFiles(start.folder), Evaluations()
        everybody = Observers([], guests)
        gib, last_step = prepared.config.keep_samples_gib, start.state.version
        samples = KeptSamples(start.folder.samples, prepared.text, everybody, gib, last_step)
        meter = StepMeter(
            everybody,
            files.begun_s,
            before=start.state.tally,
            solved=lambda: len(tasks.solved),
            skip_truncated=prepared.config.train.skip_truncated,
            agents_before=files.steps_before[-1].agents if files.steps_before else None,
        )
        for observer in (meter, samples, files, evaluations, *others):
            everybody.add(observer)
        return cls(everybody, meter, files, evaluations, tasks)


class Evaluations(Observer):
    """Remembers every evaluation."""

    def __init__(self) -> None:
        self.found: list[Evaluation] = []

    def evaluated(self, version: Version, evaluation: Evaluation) -> None:
        self.found.append(evaluation)


def tasks_of(prepared: Prepared, state: RunState) -> TaskQueue:
    """The tasks that are left to ask."""
    config, stream = prepared.config, prepared.stream(prepared.config.control.epochs)
    stream.seek(state.position)
    solved = SolvedTasks(config.control.skip_solved, config.evaluate.pass_reward, state.resting)
    return TaskQueue(stream, state.owed, solved)
