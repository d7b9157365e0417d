"""What the controller tells, into the run folder and the live view.

It turns each step into one line of metrics.jsonl, keeps a few samples for people to read, and draws the timeline. Where
the folder has lines already, of a run that goes on, it goes on too.
"""

import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from freerun.control.buffer import Buffer
from freerun.control.dealer import Dealer
from freerun.control.ledger import MemoryLedger
from freerun.core import Batch, Group, Released, Sample, Version
from freerun.core.nouns import NOT_SAMPLED, trained_by_version
from freerun.core.reports import EngineStats, Evaluation, StepResult, UpdateReport
from freerun.observe.advice import Watch
from freerun.observe.folder import JsonLines, RunFolder
from freerun.observe.live import LiveView
from freerun.observe.records import EvalRecord, NoteRecord, SampleRecord, StepRecord, read_evals, read_steps
from freerun.observe.timeline import Timeline

_SAMPLES_A_STEP = 2


@dataclass(frozen=True)
class BatchFigures:
    """What a batch is like."""

    judged: int
    samples: int
    tokens: int
    masked_tokens: int
    staleness: Counter[int]
    reward_mean: float
    answer_tokens_mean: float
    truncated_share: float

    @classmethod
    def of(cls, batch: Batch, masked_tokens: int, skip_truncated: bool) -> "BatchFigures":
        samples = batch.samples
        trained = [sample for sample in samples if not (skip_truncated and sample.truncated)]
        by_version = trained_by_version(trained)
        staleness = Counter({batch.version - version: count for version, count in by_version.items()})
        return cls(
            judged=len(samples),
            samples=len(trained),
            tokens=staleness.total(),
            masked_tokens=masked_tokens,
            staleness=staleness,
            reward_mean=_mean([sample.reward for sample in samples if sample.reward is not None]),
            answer_tokens_mean=_mean([sample.num_sampled for sample in samples]),
            truncated_share=_mean([sample.truncated for sample in samples]),
        )

    @property
    def staleness_mean(self) -> float:
        return sum(age * count for age, count in self.staleness.items()) / max(self.tokens, 1)


@dataclass(frozen=True)
class Stepped:
    """A step that is done and not written yet."""

    record: StepRecord
    result: StepResult
    shown: list[SampleRecord]
    batch_asked_s: float


class Recorder:
    """The controller's observer. A context manager: leaving it closes every file. The trainer may `skip_truncated`."""

    def __init__(
        self, folder: RunFolder, view: LiveView, ledger: MemoryLedger, tokenizer: Any, skip_truncated: bool = False
    ) -> None:
        self._skip_truncated = skip_truncated
        self._view = view
        self._ledger = ledger
        self._tokenizer = tokenizer
        self._metrics = JsonLines(folder.metrics)
        self._evals = JsonLines(folder.evals)
        self._samples = JsonLines(folder.samples)
        self._notes = JsonLines(folder.notes)
        self.steps = read_steps(folder.metrics)
        self.evaluated_versions = {record.version for record in read_evals(folder.evals)}
        now_s = self._last_step_s = self._batch_asked_s = time.monotonic()
        self._start_s = now_s - (self.steps[-1].time_s if self.steps else 0.0)
        self._timeline = Timeline(folder.timeline, now_s)
        self._rewards: list[float] = []
        """The rewards judged since the last step, and enough earlier ones to make up a batch."""
        self._judged_since = self._judged = 0
        self._watch = Watch()
        self._engine_idle_s = 0.0
        self._trained_s = now_s
        self._learning: BatchFigures | None = None
        self._shown: list[SampleRecord] = []
        self._stepped: Stepped | None = None
        self._words: dict[int, str] = {}
        self._running: dict[str, int] = {}
        self._first_token_s: dict[str, float] = {}
        self.buffer: Buffer | None = None
        self.tasks: Dealer | None = None

    def __enter__(self) -> "Recorder":
        self._view.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._write_step()
        finally:
            self._close()

    def _close(self) -> None:
        self._view.stop()
        for file in (self._metrics, self._evals, self._samples, self._notes, self._timeline):
            file.close()

    def goes_on(self, checkpoint: Path) -> None:
        self._timeline.instant("controller", "wait", f"goes on from {checkpoint.name}", time.monotonic())

    def begin(self, engine_idle_s: float) -> None:
        """Generation begins now: what came before was start-up, when engines have been idle for so long."""
        self._last_step_s = self._batch_asked_s = time.monotonic()
        self._engine_idle_s = engine_idle_s

    def doing(self, process: str, what: str) -> None:
        self._view.doing(process, what)

    def note(self, text: str) -> None:
        self._view.note(text)
        step = self.steps[-1].step if self.steps else 0
        self._notes.append(NoteRecord(step, time.monotonic() - self._start_s, text))

    def judged(self, group: Group) -> None:
        self._rewards.extend(group.rewards)
        self._judged_since += len(group.rewards)
        self._judged += len(group.samples)
        self._view.doing("rewards", f"{self._judged} answers judged")

    def engine_stats(self, name: str, stats: EngineStats) -> None:
        self._running[name] = stats.running + stats.waiting
        self._first_token_s[name] = stats.first_token_s
        self._view.doing(name, f"version {stats.version}, {stats.running} answers running, {stats.waiting} queued")
        for span in stats.spans:
            self._timeline.span(name, span.track, span.name, span.start_s, span.end_s, **span.args)

    def learns(self, batch: Batch, masked_tokens: int) -> None:
        self._learning = BatchFigures.of(batch, masked_tokens, self._skip_truncated)
        for note in self._watch.notes(batch):
            self.note(note)
        self._shown = [
            self._sample_record(batch.version + 1, batch.version, group, sample)
            for group in batch.groups[:1]
            for sample in group.samples[:_SAMPLES_A_STEP]
        ]

    def stepped(self, result: StepResult) -> None:
        """It is written after the update: nothing that is written is written twice, and engines are waiting."""
        assert self._learning
        now_s = time.monotonic()
        self._rewards = self._rewards[-max(self._judged_since, self._learning.judged) :]
        record = self._record(now_s, self._learning, result)
        self._stepped = Stepped(record, result, self._shown, self._batch_asked_s)
        self._judged_since = 0
        self._last_step_s = self._batch_asked_s = now_s
        self._trained_s = result.learned_s or now_s

    def updated(self, updates: list[UpdateReport]) -> None:
        assert self._stepped
        now_s, record = time.monotonic(), self._stepped.record
        self._timeline.span("controller", "publish", f"publish version {record.version}", self._trained_s, now_s)
        idle_s = _mean([update.idle_s for update in updates])
        recomputed = float(sum(update.recomputed_tokens for update in updates))
        record = replace(
            record,
            engine_idle_s=idle_s - self._engine_idle_s,
            update_s=now_s - self._trained_s,
            update_pause_s=_mean([update.pause_s for update in updates]),
            trainer=record.trainer | {"recomputed_tokens": recomputed},
        )
        self._stepped = replace(self._stepped, record=record)
        self._engine_idle_s = idle_s
        self._write_step()

    def _write_step(self) -> None:
        if stepped := self._stepped:
            for sample in stepped.shown:
                self._samples.append(sample)
            self._draw(stepped)
            self.steps.append(stepped.record)
            self._metrics.append(stepped.record)
            self._view.step(stepped.record)
        self._stepped = None

    def checkpointed(self, version: Version, start_s: float) -> None:
        """The trainer was busy with a copy of itself until now."""
        self._batch_asked_s = time.monotonic()
        self._timeline.span("trainer", "checkpoint", f"copy version {version}", start_s, self._batch_asked_s)

    def evaluated(self, version: Version, evaluation: Evaluation) -> None:
        record = EvalRecord(
            step=version,
            version=version,
            time_s=time.monotonic() - self._start_s,
            pass_at_1=evaluation.pass_at_1,
            low=evaluation.low,
            high=evaluation.high,
            k=evaluation.k,
            pass_at_k=evaluation.pass_at_k,
            tasks=evaluation.tasks,
            truncated_share=evaluation.truncated_share,
        )
        self._evals.append(record)
        self._view.eval(record)

    def _record(self, now_s: float, trained: BatchFigures, result: StepResult) -> StepRecord:
        step_s = now_s - self._last_step_s
        return StepRecord(
            step=result.version,
            version=result.version,
            time_s=now_s - self._start_s,
            step_s=step_s,
            reward_mean=trained.reward_mean,
            reward_mean_all=_mean(self._rewards) if self._rewards else trained.reward_mean,
            samples=trained.samples,
            tokens_trained=trained.tokens,
            tokens_per_s=trained.tokens / step_s,
            answer_tokens_mean=trained.answer_tokens_mean,
            truncated_share=trained.truncated_share,
            staleness_mean=trained.staleness_mean,
            staleness_max=max(trained.staleness, default=0),
            staleness_histogram={str(age): count for age, count in sorted(trained.staleness.items())},
            dropped={r.value: n for r, n in self._ledger.drops.items() if r is not Released.RUN_ENDED},
            judgements=dict(self._ledger.judgements),
            engine_idle_s=0.0,
            trainer_idle_s=self._trainer_idle_s(now_s, result),
            update_pause_s=0.0,
            first_token_s=_mean(list(self._first_token_s.values())),
            running=sum(self._running.values()),
            waiting=len(self.buffer) if self.buffer else 0,
            solved=self.tasks.num_solved if self.tasks else 0,
            trainer=result.metrics | {"masked_tokens": float(trained.masked_tokens), "recomputed_tokens": 0.0},
        )

    def _trainer_idle_s(self, now_s: float, result: StepResult) -> float:
        """Before the step, for a batch; after it, until its version could be published and was."""
        if not result.phases:
            return 0.0
        return (result.phases[0][1] - self._batch_asked_s) + (now_s - result.phases[-1][2])

    def _sample_record(self, step: int, version: Version, group: Group, sample: Sample) -> SampleRecord:
        versions = sample.versions.by_token()
        sampled = versions != NOT_SAMPLED
        return SampleRecord(
            step=step,
            version=version,
            group=group.id,
            task=group.task.id,
            prompt=group.task.prompt,
            answer=group.task.answer,
            text=sample.text,
            reward=sample.reward,
            finish=sample.finish.value,
            tokens=[self._word(token) for token in sample.tokens[sampled].tolist()],
            logprobs=sample.behavior_logprobs[sampled].tolist(),
            versions=versions[sampled].tolist(),
        )

    def _word(self, token: int) -> str:
        """Decoded once: a long answer has thousands of tokens, most of them often, and the loop waits for this."""
        if token not in self._words:
            self._words[token] = self._tokenizer.decode([token])
        return self._words[token]

    def _draw(self, stepped: Stepped) -> None:
        result = stepped.result
        if not result.phases:
            return
        start_s = result.phases[0][1]
        self._timeline.span("controller", "wait", "wait for a batch", stepped.batch_asked_s, start_s)
        self._timeline.span("trainer", "step", f"step {result.version}", start_s, result.learned_s)
        for name, phase_start_s, phase_end_s in result.phases:
            self._timeline.span("trainer", "phase", name, phase_start_s, phase_end_s)


def _mean(values: list[float] | list[int] | list[bool]) -> float:
    return sum(values) / len(values) if values else 0.0
