"""The files of a run folder, as an observer: metrics, evaluations, notes and the timeline.

Where the folder has lines already, of a run that goes on, it goes on too; nothing of it is changed before `begin`. A
step is written when the engines have its version: a line that is there is complete.
"""

import math
import time
from dataclasses import dataclass

from freerun.core import Version
from freerun.core.observer import Observer
from freerun.core.records import StepRecord
from freerun.core.reports import Evaluation, Span
from freerun.observe.folder import JsonLines, RunFolder
from freerun.observe.records import EvalRecord, NoteRecord, last_step, read_evals
from freerun.observe.timeline import Timeline


class RunFiles(Observer):
    def __init__(self, folder: RunFolder, goes_on_from: Version | None = None) -> None:
        """`goes_on_from`: the last step of an earlier run that counts. Then notes are kept until `begin`; a new run has
        begun."""
        last = math.inf if goes_on_from is None else goes_on_from
        self._folder = folder
        self.before = last_step(folder.metrics, last)
        """The last step of the run that this one goes on from."""
        self.evaluated_versions = {record.version for record in read_evals(folder.evals) if record.version <= last}
        self._now_s = time.monotonic()
        self.last_step = self.before.step if self.before else 0
        self.begun_s = self._now_s - (self.before.time_s if self.before else 0.0)
        """When the run began, by the monotonic clock, as if it had never been interrupted."""
        self._open: _Open | None = None
        self._noted: list[tuple[float, str]] = []
        """Before `begin`: when, and what."""
        if goes_on_from is None:
            self.begin()

    def begin(self) -> None:
        """From now on there is something to write. Lines about later steps are gone by now."""
        self._open = _Open.of(self._folder, self._now_s)
        noted, self._noted = self._noted, []
        for at_s, text in noted:
            self._note(self._open, at_s, text)

    def note(self, text: str) -> None:
        if self._open:
            self._note(self._open, time.monotonic(), text)
        else:
            self._noted.append((time.monotonic(), text))

    def _note(self, files: "_Open", at_s: float, text: str) -> None:
        files.notes.append(NoteRecord(self.last_step, at_s - self.begun_s, text))
        files.timeline.instant("controller", "notes", text, at_s)

    def span(self, span: Span) -> None:
        if self._open:
            self._open.timeline.span(span.process, span.track, span.name, span.start_s, span.end_s, **span.args)

    def step(self, record: StepRecord) -> None:
        assert self._open
        self._open.metrics.append(record)
        self.last_step = record.step

    def evaluated(self, version: Version, evaluation: Evaluation) -> None:
        assert self._open
        self._open.evals.append(EvalRecord.of(version, evaluation, time.monotonic() - self.begun_s))

    def close(self) -> None:
        if self._open:
            self._open.close()


@dataclass
class _Open:
    metrics: JsonLines
    evals: JsonLines
    notes: JsonLines
    timeline: Timeline

    @classmethod
    def of(cls, folder: RunFolder, start_s: float) -> "_Open":
        metrics, evals, notes = map(JsonLines, (folder.metrics, folder.evals, folder.notes))
        return cls(metrics, evals, notes, Timeline(folder.timeline, start_s))

    def close(self) -> None:
        for file in (self.metrics, self.evals, self.notes, self.timeline):
            file.close()
