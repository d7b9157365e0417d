"""What a logger is: a class whose methods are called in a process of its own, one after the other.

A logger may take its time, and may fail: neither is seen by the run. Whatever a method raises becomes a note, once,
and the next message is tried again; what `begin` raises ends the logger. Its fields are its options.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from freerun.core.files import write_atomically

Outcome = Literal["finished", "stopped", "failed", "killed"]
"""How the run ended: it is complete, the user stopped it, it failed, or nobody could say because it was killed."""
Figures = dict[str, float]
ANSWERS = "answers"
"""What the table of samples is called; `samples` is a figure."""


@dataclass(frozen=True)
class LoggedSample:
    """An answer, as far as a table shows it."""

    step: int
    task: str
    prompt: str
    answer: str | None
    """The reference."""
    text: str
    reward: float | None
    staleness: int
    """How old its oldest token was, in versions."""
    finish: str


@dataclass
class LoggedRun:
    """The run, as its loggers know it."""

    name: str
    folder: Path
    config: dict[str, Any]
    """As config.yaml has it, but for `observers`: options of a logger may hold secrets."""
    step: int
    """Steps done before: 0 in a new run."""
    kept_in: Path
    tell: Callable[[str], None] = print
    """Say something to the user, as a note of the run."""
    kept: dict[str, Any] = field(default_factory=dict)
    """What an earlier process of this logger kept, such as the id by which its service knows the run."""

    def __post_init__(self) -> None:
        if self.kept_in.is_file():
            self.kept = json.loads(self.kept_in.read_text())

    def keep(self, **values: Any) -> None:
        """For whoever goes on with the run."""
        self.kept |= values
        self.kept_in.parent.mkdir(exist_ok=True)
        write_atomically(self.kept_in, json.dumps(self.kept))

    @property
    def flat_config(self) -> dict[str, Any]:
        """By dotted key, as on the command line."""
        return _flat(self.config)


@dataclass(kw_only=True, eq=False)
class Logger:
    library: ClassVar[str] = ""
    """The module that must be there."""
    extra: ClassVar[str] = ""
    """Which extra of ours brings it."""
    replaces: ClassVar[bool] = False
    """Whether a step that is logged again replaces the one before. Otherwise, steps that a resumed run does again are
    not logged again."""

    samples: int = 4
    """Answers to log of each step, at most; 0: none."""

    def begin(self, run: LoggedRun) -> str:
        """Get ready. Says where to look, for a note."""
        raise NotImplementedError

    def step(self, step: int, figures: Figures, samples: Sequence[LoggedSample]) -> None:
        """All figures of a step, by the names of `core/metrics.py`."""

    def evaluated(self, step: int, figures: Figures, so_far: Sequence[Figures]) -> None:
        """The policy after that step was evaluated. `so_far`: all evaluations of the run, this one included."""

    def note(self, step: int, text: str) -> None: ...

    def end(self, outcome: Outcome) -> None: ...


@dataclass
class SampleTable:
    """Collects samples, so that a table is written every so many steps rather than at each."""

    every: int
    rows: list[LoggedSample] = field(default_factory=list)
    _written_at: int | None = None

    def add(self, step: int, samples: Sequence[LoggedSample]) -> list[LoggedSample]:
        """The rows to write now, if it is time."""
        self.rows += samples
        if self._written_at is not None and step - self._written_at < self.every:
            return []
        self._written_at = step
        return self.take()

    def take(self) -> list[LoggedSample]:
        """The rows that nobody has written yet."""
        rows, self.rows = self.rows, []
        return rows


def table(rows: Sequence[LoggedSample]) -> tuple[list[str], list[list[Any]]]:
    """Columns and data."""
    return list(LoggedSample.__dataclass_fields__), [list(asdict(row).values()) for row in rows]


def evaluation_table(evaluations: Sequence[Figures]) -> tuple[list[str], list[list[Any]]]:
    columns = [name.removeprefix("eval/") for name in (evaluations[0] if evaluations else ())]
    return columns, [list(figures.values()) for figures in evaluations]


def markdown(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table. What models write is shown as code, so that it is text and never markup."""
    lines = [columns, ["---"] * len(columns), *([_cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if not isinstance(value, str):
        return "" if value is None else str(value)
    shown = value.replace("`", "ˋ").replace("|", "¦").replace("\n", "⏎")
    return f"`{shown}`" if shown.strip() else shown


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {prefix + key: value}
    return found
