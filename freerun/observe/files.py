"""The files of a run folder, as an observer: metrics, evaluations, a few samples, notes and the timeline.

Where the folder has lines already, of a run that goes on, it goes on too. A step and its samples are written together,
when the engines have the step's version: a line that is there is complete.
"""

import time

from freerun.core import Batch, Version
from freerun.core.observer import Observer
from freerun.core.records import StepRecord
from freerun.core.reports import Evaluation, Span
from freerun.observe.folder import JsonLines, RunFolder
from freerun.observe.records import EvalRecord, NoteRecord, SampleRecord, read_evals, read_steps
from freerun.observe.samples import Decoder, SampleRecords
from freerun.observe.timeline import Timeline


class RunFiles(Observer):
    def __init__(self, folder: RunFolder, tokenizer: Decoder) -> None:
        self._records = SampleRecords(tokenizer)
        self._metrics = JsonLines(folder.metrics)
        self._evals = JsonLines(folder.evals)
        self._samples = JsonLines(folder.samples)
        self._notes = JsonLines(folder.notes)
        self.steps_before = read_steps(folder.metrics)
        """Those of the run that this one goes on from."""
        self.evaluated_versions = {record.version for record in read_evals(folder.evals)}
        now_s = time.monotonic()
        self._last_step = self.steps_before[-1].step if self.steps_before else 0
        self.begun_s = now_s - (self.steps_before[-1].time_s if self.steps_before else 0.0)
        """When the run began, by the monotonic clock, as if it had never been interrupted."""
        self._timeline = Timeline(folder.timeline, now_s)
        self._shown: dict[int, list[SampleRecord]] = {}
        """By step: the samples that wait for its line."""

    def note(self, text: str) -> None:
        now_s = time.monotonic()
        self._notes.append(NoteRecord(self._last_step, now_s - self.begun_s, text))
        self._timeline.instant("controller", "notes", text, now_s)

    def span(self, span: Span) -> None:
        self._timeline.span(span.process, span.track, span.name, span.start_s, span.end_s, **span.args)

    def learning(self, batch: Batch, masked_tokens: int) -> None:
        first = batch.groups[:1]
        self._shown[batch.version + 1] = [r for group in first for r in self._records.of(batch.version, group)]

    def step(self, record: StepRecord) -> None:
        for sample in self._shown.pop(record.step, []):
            self._samples.append(sample)
        self._metrics.append(record)
        self._last_step = record.step

    def evaluated(self, version: Version, evaluation: Evaluation) -> None:
        self._evals.append(EvalRecord.of(version, evaluation, time.monotonic() - self.begun_s))

    def close(self) -> None:
        for file in (self._metrics, self._evals, self._samples, self._notes, self._timeline):
            file.close()
