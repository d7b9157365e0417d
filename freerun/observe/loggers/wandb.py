"""Weights & Biases, online or offline. The x axis of every chart is the training step."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, ClassVar, Literal

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


@dataclass(kw_only=True, eq=False)
class Wandb(Logger):
    library: ClassVar[str] = "wandb"
    extra: ClassVar[str] = "wandb"

    project: str = "freerun"
    entity: str | None = None
    """The team; empty: your own."""
    name: str | None = None
    """The run's name; empty: its folder's."""
    group: str | None = None
    tags: list[str] = field(default_factory=list)
    mode: Literal["online", "offline", "shared"] | None = None
    """Empty: WANDB_MODE, or online."""
    samples_every: int = 10
    """Steps from one table of samples to the next; each has the samples of all steps in between."""

    def begin(self, run: LoggedRun) -> str:
        import wandb

        self._wandb: Any = wandb
        if "id" not in run.kept:
            run.keep(id=token_hex(4))
        self._run: Any = wandb.init(
            project=self.project,
            entity=self.entity,
            name=self.name or run.name,
            group=self.group,
            tags=self.tags or None,
            mode=self.mode,
            id=run.kept["id"],
            resume="allow",
            dir=str(run.folder),
            config=run.config,
        )
        self._run.define_metric("eval/step", hidden=True)
        self._run.define_metric("eval/*", step_metric="eval/step")  # they come later than the steps they are of
        self._table = SampleTable(self.samples_every)
        self._step = run.step
        if self._run.url and not self._run.offline:
            return f"logs to {self._run.url}"
        return f"logs offline; send it by: wandb sync {self._run.settings.sync_dir}"

    def step(self, step: int, figures: Figures, samples: Sequence[LoggedSample]) -> None:
        self._step = step
        self._run.log({**figures, **self._shown(self._table.add(step, samples))}, step=step)

    def evaluated(self, step: int, figures: Figures, so_far: Sequence[Figures]) -> None:
        columns, data = evaluation_table(so_far)
        shown = self._wandb.Table(columns=columns, data=data)
        self._run.log({**figures, "evaluations": shown}, step=self._step)

    def note(self, step: int, text: str) -> None:
        """What is printed is shown as the run's log."""
        print(f"step {step}: {text}")

    def end(self, outcome: Outcome) -> None:
        if rest := self._shown(self._table.take()):
            self._run.log(rest, step=self._step)
        self._run.finish(exit_code=0 if outcome == "finished" else 1)

    def _shown(self, samples: Sequence[LoggedSample]) -> dict[str, Any]:
        if not samples:
            return {}
        columns, data = table(samples)
        return {ANSWERS: self._wandb.Table(columns=columns, data=data, allow_mixed_types=True)}
