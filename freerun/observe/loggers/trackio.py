"""trackio: runs in a local database, or in a Space of Hugging Face."""

from collections.abc import Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, ClassVar

from freerun.observe.loggers.base import (
    ANSWERS,
    Figures,
    LoggedRun,
    LoggedSample,
    Logger,
    Outcome,
    SampleTable,
    evaluation_table,
    table,
)

_AXIS = "step"
"""What trackio calls its own axis; a figure of that name would be renamed."""


@dataclass(kw_only=True, eq=False)
class Trackio(Logger):
    library: ClassVar[str] = "trackio"
    extra: ClassVar[str] = "trackio"

    project: str = "freerun"
    group: str | None = None
    space_id: str | None = None
    """A Space, such as you/freerun; empty: on this machine, where `trackio show` finds it."""
    samples_every: int = 10
    """Steps from one table of samples to the next; each has the samples of all steps in between."""

    def begin(self, run: LoggedRun) -> str:
        import trackio

        self._trackio: Any = trackio
        if "name" not in run.kept:  # by which it is found again, so it must be the only one
            run.keep(name=f"{run.name}-{token_hex(2)}")
        name = run.kept["name"]
        trackio.init(
            self.project,
            name=name,
            group=self.group,
            space_id=self.space_id,
            config=run.config,
            resume="allow",
            embed=False,
        )
        self._table = SampleTable(self.samples_every)
        self._step = run.step
        show = "" if self.space_id else f"; look at it by: trackio show --project {self.project}"
        return f"logs to the run {name} of the project {self.project}{show}"

    def step(self, step: int, figures: Figures, samples: Sequence[LoggedSample]) -> None:
        self._step = step
        named = {name: value for name, value in figures.items() if name != _AXIS}
        self._trackio.log({**named, **self._shown(self._table.add(step, samples))}, step=step)

    def evaluated(self, step: int, figures: Figures, so_far: Sequence[Figures]) -> None:
        columns, data = evaluation_table(so_far)
        evaluations = self._trackio.Table(columns=columns, data=data)
        self._trackio.log({**figures, "evaluations": evaluations}, step=step)

    def note(self, step: int, text: str) -> None:
        self._trackio.alert(title=f"step {step}", text=text, level=self._trackio.AlertLevel.INFO)

    def end(self, outcome: Outcome) -> None:
        if rest := self._shown(self._table.take()):
            self._trackio.log(rest, step=self._step)
        self._trackio.finish()

    def _shown(self, samples: Sequence[LoggedSample]) -> dict[str, Any]:
        if not samples:
            return {}
        columns, data = table(samples)
        return {ANSWERS: self._trackio.Table(columns=columns, data=data)}
