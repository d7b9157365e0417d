"""The figures of all steps of a run as columns, by the names of `core/metrics.py`, for drawing curves.

Consumes lines of metrics.jsonl in the order they are written; of a step that is recorded twice (the run was resumed
from before it) the later record counts. A line that is no record is counted and passed over: a page shows the rest.
"""

import math
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LAST = ("dropped/", "judgements/", "agents/sessions/", "agents/forks/", "agents/unused/")
LAST_NAMES = {"step", "version", "time_s", "tokens", "solved", "agents/requests"}
"""Figures that only grow: where a point stands for several steps, it has the last one's. Others have their mean, sum or
maximum."""


class StepColumns:
    def __init__(self) -> None:
        self._columns: dict[str, array[float]] = {}
        self.steps: array[int] = array("q")
        self.damaged = 0
        """Lines that are no record."""

    def __len__(self) -> int:
        return len(self.steps)

    def add(self, line: bytes) -> None:
        try:
            record = msgspec.json.decode(line, type=dict[str, Any])
            step = int(record["step"])
        except (msgspec.DecodeError, KeyError, TypeError, ValueError):
            self.damaged += 1
            return
        self._forget_from(step)
        known = len(self.steps)
        self.steps.append(step)
        for name, value in _flat(record, ""):
            column = self._columns.get(name)
            if column is None:
                column = self._columns[name] = array("d", [math.nan]) * known
            column.append(value)
        for column in self._columns.values():
            if len(column) == known:
                column.append(math.nan)

    def _forget_from(self, step: int) -> None:
        while self.steps and self.steps[-1] >= step:
            self.steps.pop()
            for column in self._columns.values():
                column.pop()

    @property
    def names(self) -> list[str]:
        return [*self._columns, *_DERIVED] if self.steps else []

    def column(self, name: str, start: int = 0, end: int | None = None) -> Floats:
        """A figure of all steps, or of those from index `start` to `end`; NaN where it is not known."""
        if name in _DERIVED:
            derived: Floats = _DERIVED[name](self, start, end)
            return derived
        if name not in self._columns:
            return np.full(len(self.steps[start:end]), math.nan)
        return np.array(self._columns[name][start:end], np.float64)

    def total(self, name: str) -> float:
        return float(np.nansum(self.column(name)))

    def last(self, name: str, default: float = math.nan) -> float:
        return self._columns[name][-1] if self._columns.get(name) else default

    def family(self, prefix: str) -> dict[str, Floats]:
        """Figures that are taken apart, by what they are taken apart by: `staleness_histogram/3` under `3`."""
        return {name.removeprefix(prefix): self.column(name) for name in self._columns if name.startswith(prefix)}

    def index_of(self, step: float) -> int:
        """The index of the first step that is not before that one."""
        return int(np.searchsorted(np.array(self.steps, np.int64), step))

    def curves(self, names: Sequence[str] | None, start: int, end: int, points: int) -> dict[str, Any]:
        """Columns of at most so many points over those steps; `each` is how many steps a point stands for."""
        each = max(math.ceil((end - start) / points), 1)
        wanted = [name for name in self.names if names is None or name in names or name in ("step", "time_s", "tokens")]
        return {
            "each": each,
            "steps": len(self),
            "last_step": self.steps[-1] if self.steps else 0,
            "columns": {name: _short(reduced(name, self.column(name, start, end), each)) for name in wanted},
        }


def reduced(name: str, values: Floats, each: int) -> Floats:
    """One value for every `each`."""
    if each == 1 or not len(values):
        return values
    rest = -len(values) % each
    parts = np.concatenate([values, np.full(rest, math.nan)]).reshape(-1, each)
    if name in LAST_NAMES or name.startswith(LAST):
        return np.array([*parts[:-1, -1], values[-1]])
    if name.endswith("_max"):
        return np.asarray(np.fmax.reduce(parts, axis=1))
    sums: Floats = np.nansum(parts, axis=1)
    if name.startswith("staleness_histogram/"):
        return sums
    with np.errstate(invalid="ignore"):
        means: Floats = sums / np.sum(~np.isnan(parts), axis=1)
    return means


def _flat(values: dict[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, float | int):
            yield prefix + name, value
        elif isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}/")


def _share_of_step(name: str) -> Any:
    def share(columns: StepColumns, start: int, end: int | None) -> Floats:
        step_s = columns.column("step_s", start, end)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(step_s > 0, np.clip(columns.column(name, start, end) / step_s, 0.0, 1.0), 0.0)

    return share


def _tokens_so_far(columns: StepColumns, start: int, end: int | None) -> Floats:
    every = np.nan_to_num(columns.column("tokens_trained", 0, end))
    sums: Floats = np.cumsum(every)[start:]
    return sums


_DERIVED: dict[str, Any] = {
    "engine_idle_share": _share_of_step("engine_idle_s"),
    "trainer_idle_share": _share_of_step("trainer_idle_s"),
    "tokens": _tokens_so_far,
}
"""What is worked out from other columns."""


def _short(values: Floats) -> list[float | None]:
    """With six digits, and null for what is not known."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        digits = np.clip(6 - np.ceil(np.log10(np.abs(values))), -300, 300)
        scale = 10.0 ** np.where(np.isfinite(digits), digits, 0.0)
        short = np.where(np.isfinite(values * scale), np.round(values * scale) / scale, values)
    return [value if math.isfinite(value) else None for value in short.tolist()]
