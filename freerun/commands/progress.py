"""Progress of the jobs that are not a training run: a bar on a terminal, plain lines elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from freerun.core import Version
from freerun.core.observer import Observer
from freerun.core.records import StepRecord
from freerun.core.reports import Evaluation


class LessonProgress(Observer):
    """Learning from what is given as it goes: the loss as it falls, and how good the policy is when it is evaluated."""

    def __init__(
        self, steps: int, called: str = "supervised", passed: str = "pass@1", console: Console | None = None
    ) -> None:
        """`called` is the kind of training, `passed` what an evaluation counts."""
        self._console = console or Console()
        self._called, self._passed = called, passed
        columns = (TextColumn(called), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
        self._bar = Progress(
            *columns, TimeRemainingColumn(), console=self._console, disable=not self._console.is_terminal
        )
        self._task = self._bar.add_task("", total=steps)
        self._loss = float("nan")

    def note(self, text: str) -> None:
        self._console.print(f"note: {text}", highlight=False)

    def step(self, record: StepRecord) -> None:
        step, self._loss = record.step, record.trainer["loss"]
        self._bar.start()
        self._bar.update(self._task, completed=step, description=f"loss {self._loss:.3f}")
        if not self._console.is_terminal and (step == 1 or step % 100 == 0):
            self._console.print(f"{self._called} step {step}: loss {self._loss:.3f}", highlight=False)

    def evaluated(self, version: Version, evaluation: Evaluation) -> None:
        self._console.print(
            f"{self._called} step {version}: loss {self._loss:.3f}, {self._passed} {evaluation.pass_at_1:.2f}",
            highlight=False,
        )

    def close(self) -> None:
        self._bar.stop()


@contextmanager
def counting(what: str, total: int, console: Console | None = None) -> Iterator[Callable[[], None]]:
    """A function to call once for each thing done."""
    console = console or Console(stderr=True)
    with Progress(TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)
