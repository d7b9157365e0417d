"""The files of a run folder, as an observer: metrics, evaluations, notes and the timeline.

Where the folder has lines already, of a run that goes on, it goes on too. A step is written when the engines have its
version: a line that is there is complete.
"""

import time

from freerun.core import Version
from freerun.core.observer import Observer
from freerun.core.records import StepRecord
from freerun.core.reports import Evaluation, Span
from freerun.observe.folder import JsonLines, RunFolder
from freerun.observe.records import EvalRecord, NoteRecord, read_evals, read_steps
from freerun.observe.timeline import Timeline


class RunFiles(Observer):
    def __init__(self, folder: RunFolder) -> None:
        self._metrics = JsonLines(folder.metrics)
        self._evals = JsonLines(folder.evals)
        self._notes = JsonLines(folder.notes)
        self.steps_before = read_steps(folder.metrics)
        """Those of the run that this one goes on from."""
        self.evaluated_versions = {record.version for record in read_evals(folder.evals)}
        now_s = time.monotonic()
        self.last_step = self.steps_before[-1].step if self.steps_before else 0
        self.begun_s = now_s - (self.steps_before[-1].time_s if self.steps_before else 0.0)
        """When the run began, by the monotonic clock, as if it had never been interrupted."""
        self._timeline = Timeline(folder.timeline, now_s)

    def note(self, text: str) -> None:
        now_s = time.monotonic()
        self._notes.append(NoteRecord(self.last_step, now_s - self.begun_s, text))
        self._timeline.instant("controller", "notes", text, now_s)

    def span(self, span: Span) -> None:
        self._timeline.span(span.process, span.track, span.name, span.start_s, span.end_s, **span.args)

    def step(self, record: StepRecord) -> None:
        self._metrics.append(record)
        self.last_step = record.step

    def evaluated(self, version: Version, evaluation: Evaluation) -> None:
        self._evals.append(EvalRecord.of(version, evaluation, time.monotonic() - self.begun_s))

    def close(self) -> None:
        for file in (self._metrics, self._evals, self._notes, self._timeline):
            file.close()
