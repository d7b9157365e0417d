"""One run as its page shows it: the files of its folder, read on while the run goes on.

Consumes whichever files exist, also those of a run that was killed, is starting, or is being deleted. Produces plain
data for the page's charts and lists: the live page asks for it piece by piece (`web/server.py`), the self-contained
report has it inside (`report.py`). What cannot be read is said in `problems`, and the rest is shown.
"""

import math
import time
from pathlib import Path
from typing import Any

import msgspec
import yaml

from freerun.core import DataError
from freerun.core.section import by_dotted_key
from freerun.observe.columns import StepColumns
from freerun.observe.figures import duration
from freerun.observe.folder import RunFolder, encode
from freerun.observe.records import EvalRecord, NoteRecord, SampleRecord, as_record, nulls_to_nan
from freerun.observe.sample_reader import SamplePage, SampleReader
from freerun.observe.search import SampleFilter
from freerun.observe.spans import SpanIndex
from freerun.observe.status import RunPhase, RunStatus, read_status
from freerun.observe.summary import Summary, outcome, summarise
from freerun.observe.tail import LinesTail
from freerun.observe.tiles import overlap_in_words, tiles
from freerun.observe.time_shares import time_shares
from freerun.observe.why import Why, why

POINTS = 600
"""Points of a curve, unless asked for more."""
SUMMARY_SHARE = 0.01
"""A summary is worked out anew when that takes at most this share of the time."""
OPENING_STEPS = 8
WHY_STEPS = 50
"""The page says what the last so many steps waited for."""


class RunView:
    """One thread at a time."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.columns = StepColumns()
        self.spans = SpanIndex(folder.timeline)
        self.notes: list[NoteRecord] = []
        self._evals: dict[int, EvalRecord] = {}
        self._metrics, self._eval_lines = LinesTail(folder.metrics), LinesTail(folder.evals)
        self._note_lines = LinesTail(folder.notes)
        self._damaged: dict[str, int] = {}
        self._summary: Summary | None = None
        self._summary_due_s = 0.0
        self._reader: SampleReader | None = None

    def refresh(self) -> None:
        """Read what was written since the last time."""
        new = self._metrics.read()
        if new.anew:
            self.columns = StepColumns()
        for line in new.lines:
            self.columns.add(line)
        self._damaged["metrics.jsonl"] = self.columns.damaged
        for record in self._records(self._eval_lines, EvalRecord, self._evals.clear):
            self._evals[record.step] = record
        self.notes += self._records(self._note_lines, NoteRecord, self.notes.clear)

    def _records(self, tail: LinesTail, kind: Any, forget: Any) -> list[Any]:
        new, found, name = tail.read(), [], tail.path.name
        if new.anew:
            forget()
            self._damaged[name] = 0
        for line in new.lines:
            try:
                found.append(as_record(nulls_to_nan(msgspec.json.decode(line, type=dict[str, Any])), kind, tail.path))
            except (msgspec.DecodeError, DataError):
                self._damaged[name] = self._damaged.get(name, 0) + 1
        return found

    @property
    def evals(self) -> list[EvalRecord]:
        return [self._evals[step] for step in sorted(self._evals)]

    @property
    def status(self) -> RunStatus | None:
        return read_status(self.folder.path)

    @property
    def problems(self) -> list[str]:
        """What could not be read, a line each."""
        told = [
            f"{name}: {count} lines could not be read and are left out"
            if count > 1
            else f"{name}: 1 line could not be read and is left out"
            for name, count in (self._damaged | {"timeline.json": self.spans.damaged}).items()
            if count
        ]
        if not self.folder.path.is_dir():
            told.insert(0, f"the folder {self.folder.path} is gone: what is shown was read before")
        return told

    # What the page asks for

    def overview(self) -> dict[str, Any]:
        """All of the page that is no curve, no timeline and no sample."""
        self.refresh()
        self.spans.refresh()
        summary, config, status = self.summary(), self.config(), self.status
        bound, found = staleness_bound(config), self.why(WHY_STEPS)
        return {
            "name": self.folder.name,
            "path": str(self.folder.path.resolve()),
            **state_of(status),
            "steps_planned": config.get("control.steps"),
            "bound": bound,
            "outcome": outcome(summary, bound),
            "tiles": tiles(summary, self.evals, bound),
            "overlap": overlap_in_words(summary),
            "why": {"bottleneck": found.bottleneck, "figures": found.figures, "advice": found.advice},
            "histogram": list(summary.staleness_histogram.items()),
            "evals": self.evals,
            "notes": self.notes[-500:],
            "num_notes": len(self.notes),
            "problems": self.problems,
            "supervised": summary.loss is not None,
            "last_seen": [] if summary.steps else self._last_seen(),
            "config": self.config_text(),
        }

    def why(self, steps: int | None = None) -> Why:
        """What holds the run up, by its last steps, or by all but the first."""
        supervised = "reward_mean_all" not in self.columns.names
        return Why() if supervised else why(time_shares(self.columns, steps), self.config())

    def brief(self) -> dict[str, Any]:
        """A row of the list of runs."""
        self.refresh()
        supervised = len(self.columns) > 0 and "reward_mean_all" not in self.columns.names
        curve = "trainer/loss" if supervised else "reward_mean_all"
        spark = self.columns.curves([curve], 0, len(self.columns), 60)["columns"].get(curve, [])
        evals = self.evals
        return {
            "name": self.folder.name,
            **state_of(self.status),
            "step": self.columns.steps[-1] if self.columns.steps else 0,
            "steps_planned": self.config().get("control.steps"),
            "time_s": self.columns.last("time_s", 0.0),
            "curve": curve,
            "spark": spark,
            "eval": evals[-1] if evals else None,
            "tokens_per_s": self.columns.last("tokens_per_s"),
            "staleness_max": math.nan if supervised else self.columns.last("staleness_max"),
            "bound": staleness_bound(self.config()),
            "changed": _changed(self.folder.path),
            "num_notes": len(self.notes),
            "problems": self.problems,
        }

    def live(self) -> dict[str, Any]:
        """What changes from second to second: cheap enough to be asked for all the time."""
        self.refresh()
        return {
            **state_of(self.status),
            "step": self.columns.steps[-1] if self.columns.steps else 0,
            "num_notes": len(self.notes),
            "num_evals": len(self._evals),
        }

    def curves(
        self,
        names: list[str] | None = None,
        first_step: int | None = None,
        last_step: int | None = None,
        points: int = POINTS,
    ) -> dict[str, Any]:
        """The figures of those steps, as many points at most; all figures unless named."""
        self.refresh()
        start = 0 if first_step is None else self.columns.index_of(first_step)
        end = len(self.columns) if last_step is None else self.columns.index_of(last_step + 1)
        return self.columns.curves(names, start, end, max(points, 1))

    def timeline(self, from_s: float | None = None, to_s: float | None = None, width: int = 1200) -> dict[str, Any]:
        """A stretch of it; the one to open with unless told."""
        self.refresh()
        self.spans.refresh()
        opening = self._opening()
        low, high = opening if from_s is None or to_s is None else (from_s, to_s)
        noted = [[note.time_s, note.text] for note in self.notes if low <= note.time_s <= high][-200:]
        return {**self.spans.window(low, high, width), "opening": opening, "notes": noted}

    def _opening(self) -> tuple[float, float]:
        """The last few steps of a run that goes on, the middle few of one that is over, the whole of a short one."""
        first, last = self.spans.wall
        steps = self.spans.track("trainer", "step")
        if steps is None or len(steps.starts) <= OPENING_STEPS:
            return first, last
        if (status := self.status) and status.state in (RunPhase.STARTING, RunPhase.RUNNING):
            return steps.starts[-OPENING_STEPS], last
        middle = len(steps.starts) // 2
        low = max(middle - OPENING_STEPS // 2, 0)
        return steps.starts[low], steps.starts[min(low + OPENING_STEPS, len(steps.starts) - 1)]

    def samples(self, wanted: SampleFilter, before_id: int | None = None, limit: int = 50) -> SamplePage:
        return self._samples().page(wanted, before_id, min(limit, 200))

    def sample(self, id: int) -> SampleRecord:
        return self._samples().one(id)

    def task(self, task: str) -> dict[str, Any]:
        return {"task": task, "rows": self._samples().task_history(task)}

    def config(self) -> dict[str, Any]:
        """Every value by its dotted key; none where the file cannot be read."""
        try:
            values = yaml.safe_load(self.config_text())
        except yaml.YAMLError:
            return {}
        return dict(by_dotted_key(values)) if isinstance(values, dict) else {}

    def config_text(self) -> str:
        try:
            return self.folder.config.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def summary(self) -> Summary:
        """As fresh as costs next to nothing: beside a run, its figures may be a little old."""
        begun_s = time.thread_time()
        if self._summary is None or time.monotonic() >= self._summary_due_s:
            last_eval_s = max((record.time_s for record in self.evals), default=0.0)
            self._summary = summarise(self.columns, self.spans, last_eval_s)
            self._summary_due_s = time.monotonic() + (time.thread_time() - begun_s) / SUMMARY_SHARE
        return self._summary

    def _samples(self) -> SampleReader:
        if self._reader is None:
            self._reader = SampleReader(self.folder.samples)
        return self._reader

    def _last_seen(self) -> list[str]:
        """For a run without a step: how long each process was last seen at work."""
        return [
            f"{track.process}, {track.name}: {duration(track.ends[-1] - track.starts[-1])}, "
            f"ended at {duration(track.ends[-1])}"
            for track in self.spans.tracks.values()
            if track.ends
        ]


def staleness_bound(config: dict[str, Any]) -> int | None:
    bound = config.get("control.max_staleness")
    return bound if isinstance(bound, int) else None


def differences(configs: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The settings in which runs differ: each key with every run's value, as text. Names and folders always do."""
    keys = sorted({key for config in configs.values() for key in config} - {"name", "runs"})
    rows = []
    for key in keys:
        values = {run: _as_text(config.get(key)) for run, config in configs.items()}
        if len(set(values.values())) > 1:
            rows.append({"key": key, "values": values})
    return rows


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else encode(value).decode()


def state_of(status: RunStatus | None) -> dict[str, Any]:
    """Whether the run goes on, and what every process does now."""
    if status is None:
        return {"state": "unknown", "said": "", "started": None, "doing": []}
    doing = [{"process": process, "what": now.what, "since": now.since} for process, now in status.doing.items()]
    said = (status.ended or "").partition(": ")[2]
    return {"state": status.state, "said": said, "started": status.started, "doing": doing}


def _changed(path: Path) -> float:
    """When the run last wrote something, in seconds since 1970."""
    times = [0.0]
    for file in ("metrics.jsonl", "status.json", "config.yaml"):
        try:
            times.append((path / file).stat().st_mtime)
        except OSError:
            continue
    return max(times)
