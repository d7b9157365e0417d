"""One line of metrics.jsonl, of evals.jsonl, of samples.jsonl, of notes.jsonl, as types; and reading them back.

The controller fills these in, the live view and the report read them. A number that does not exist (the loss of a step
without tokens) is NaN here and null in the file.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from freerun.core import DataError, Version
from freerun.observe.folder import iter_lines


@dataclass(frozen=True)
class StepRecord:
    """One training step, as the controller saw it: a line of metrics.jsonl."""

    step: int
    """Training steps done, this one included: the first is 1."""
    version: Version
    """The policy's version after this step."""
    time_s: float
    """Seconds from the run's start to the end of this step."""
    step_s: float
    """Seconds since the previous step ended (for the first: since the run began to generate), all waiting included."""
    reward_mean: float
    """Mean reward of the samples in this step's batch."""
    reward_mean_all: float
    """Mean reward of all samples judged since the previous step, those of filtered and dropped groups included; or of
    the last ones judged, as many as a batch has, where those are fewer: a mean of a handful says little."""
    samples: int
    """Samples trained on: without truncated ones where train.skip_truncated leaves those out."""
    tokens_trained: int
    """Sampled tokens that carried loss in this step."""
    tokens_per_s: float
    """Tokens trained on a second of wall time: tokens_trained / step_s."""
    answer_tokens_mean: float
    """Mean length of the batch's answers, in sampled tokens."""
    truncated_share: float
    """Share (0 to 1) of the batch's samples that ran into a length limit."""
    staleness_mean: float
    """Mean over trained tokens of the trainer's version less the token's, in versions."""
    staleness_max: int
    """The stalest trained token, in versions: what the bound is about."""
    staleness_histogram: dict[str, int]
    """Staleness in versions → tokens trained at it."""
    dropped: dict[str, int]
    """Reason → groups dropped for it since the run's start. `trained` is not in it."""
    engine_idle_s: float
    """Seconds of `step_s` in which an engine had nothing to generate, mean over engines."""
    trainer_idle_s: float
    """Seconds of `step_s` in which the trainer waited: for data, or for engines to take the version before."""
    update_pause_s: float
    """Seconds of `step_s` in which an engine stood still to swap weights, mean over engines."""
    running: int
    """Samples being generated when the step ended, all engines together."""
    waiting: int
    """Judged groups in the buffer when the step ended."""
    trainer: dict[str, float]
    """What the trainer reports: loss, grad_norm, entropy, clip_share, kl, lr, …"""
    update_s: float = 0.0
    """Seconds from the end of the trainer's step until the engines had its version: published, fetched, swapped."""
    first_token_s: float = 0.0
    """Seconds from the previous version's swap to the first tokens it sampled, mean over engines."""
    judgements: dict[str, int] = field(default_factory=dict)
    """How judging ended → samples since the run's start: ok; unparseable (nothing could be read, which has its reward
    too, most often 0); and why there is no reward: timeout, crash, error."""
    solved: int = 0
    """Tasks of which every answer passed when they were last asked; counted with control.skip_solved only."""

    @property
    def judge_failures(self) -> dict[str, int]:
        """Reason → samples that have no reward."""
        return {reason: count for reason, count in self.judgements.items() if reason not in ("ok", "unparseable")}

    @property
    def engine_idle_share(self) -> float:
        return _share(self.engine_idle_s, self.step_s)

    @property
    def trainer_idle_share(self) -> float:
        return _share(self.trainer_idle_s, self.step_s)


@dataclass(frozen=True)
class EvalRecord:
    """One evaluation of one version: a line of evals.jsonl."""

    step: int
    """Training steps done when the version was published; 0 is the starting checkpoint."""
    version: Version
    """The policy that was evaluated, start to end."""
    time_s: float
    """Seconds from the run's start to the end of the evaluation."""
    pass_at_1: float
    """Probability (0 to 1) that one answer is right, mean over tasks."""
    low: float
    """Lower end of the 95% confidence interval of `pass_at_1`."""
    high: float
    """Upper end of the 95% confidence interval of `pass_at_1`."""
    k: int
    """Answers sampled for each task."""
    pass_at_k: float
    """Probability (0 to 1) that at least one of k answers is right, mean over tasks."""
    tasks: int
    """Tasks evaluated."""
    truncated_share: float
    """Share (0 to 1) of the answers that ran into a length limit."""


@dataclass(frozen=True)
class SampleRecord:
    """One sample kept for people to read: a line of samples.jsonl. The last three lists are aligned."""

    step: int
    """The training step that consumed it."""
    version: Version
    """The trainer's version before that step: a token's staleness is this less the token's version."""
    group: int
    """The group's id."""
    task: str
    """The task's id."""
    prompt: str
    answer: str | None
    """The reference answer, where the task has one."""
    text: str
    """The sampled text."""
    reward: float | None
    """None where judging failed."""
    finish: str
    """Why it ended, a FinishReason."""
    tokens: list[str]
    """The sampled tokens as text."""
    logprobs: list[float | None]
    """Behavior log-probability of each, in nats."""
    versions: list[Version]
    """The policy version that sampled each."""


@dataclass(frozen=True)
class NoteRecord:
    """Something the user should read: a line of notes.jsonl."""

    step: int
    """Training steps done when it was said."""
    time_s: float
    """Seconds from the run's start."""
    text: str


Record = TypeVar("Record", StepRecord, EvalRecord, SampleRecord, NoteRecord)


def read_steps(path: Path) -> list[StepRecord]:
    """The steps of a run. Of a step recorded twice (the run was resumed from before it), the later record counts."""
    latest = {r.step: r for r in (as_record(_nulls_to_nan(line), StepRecord, path) for line in iter_lines(path))}
    return [latest[step] for step in sorted(latest)]


def read_evals(path: Path) -> list[EvalRecord]:
    latest = {r.step: r for r in (as_record(_nulls_to_nan(line), EvalRecord, path) for line in iter_lines(path))}
    return [latest[step] for step in sorted(latest)]


def read_notes(path: Path) -> list[NoteRecord]:
    return [as_record(line, NoteRecord, path) for line in iter_lines(path)]


def as_record(line: dict[str, Any], kind: type[Record], path: Path) -> Record:
    try:
        return msgspec.convert(line, kind)
    except msgspec.ValidationError as error:
        raise DataError(f"{path} holds a line that is no {kind.__name__}: {error}") from error


def _nulls_to_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _nulls_to_nan(inner) for key, inner in value.items()}
    return math.nan if value is None else value


def _share(part: float, whole: float) -> float:
    return min(max(part / whole, 0.0), 1.0) if whole > 0 else 0.0
