"""One line of metrics.jsonl, of evals.jsonl, of notes.jsonl, and one sample of run.db, as types; and reading them back.

The controller fills these in, the live view and the report read them. A number that does not exist (the loss of a step
without tokens) is NaN here and null in the file.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from freerun.core import DataError, Version
from freerun.core.records import StepRecord
from freerun.core.reports import Evaluation
from freerun.observe.folder import iter_lines


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

    @classmethod
    def of(cls, version: Version, evaluation: Evaluation, time_s: float) -> "EvalRecord":
        return cls(
            step=version,
            version=version,
            time_s=time_s,
            pass_at_1=evaluation.pass_at_1,
            low=evaluation.low,
            high=evaluation.high,
            k=evaluation.k,
            pass_at_k=evaluation.pass_at_k,
            tasks=evaluation.tasks,
            truncated_share=evaluation.truncated_share,
        )


@dataclass(frozen=True)
class CallRecord:
    """A call of a tool, as a message has it."""

    name: str
    arguments: str
    """A text of JSON."""
    id: str


@dataclass(frozen=True)
class TurnRecord:
    """One message of a sample's conversation."""

    role: str
    text: str
    reasoning: str = ""
    """Its thoughts, where they are kept apart."""
    calls: list[CallRecord] = field(default_factory=list)
    """The tools that it calls."""
    result_of: str | None = None
    """The id of the call that it answers, for what a tool says."""
    sampled: bool = False
    """Whether the policy said it."""
    reward: float | None = None
    """What it was given of its own."""
    start: int = 0
    end: int = 0
    """Which of the sample's `tokens` are its own (end excluded). It has none if others said it, or if it is trained on
    in another branch."""
    versions: list[tuple[Version, int]] = field(default_factory=list)
    """Which version sampled its tokens, as runs: a version, and how many tokens in a row."""


@dataclass(frozen=True)
class SampleRecord:
    """One sample of run.db, for people and scripts to read. A single answer has no `turns`; a conversation has them
    all, and a record for each of its branches. `tokens`, `logprobs`, `versions`, `before` and `ratios` are aligned."""

    step: int
    """The training step that consumed it; of one that was dropped, the step that was next."""
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
    member: int | None = None
    """Which try of the task it belongs to. None in older runs, where each is one by itself."""
    branch: int = 0
    """Which of its member's branches it is. The reward is the member's."""
    branches: int = 1
    """How many its member has; not all of them may be kept."""
    turns: list[TurnRecord] = field(default_factory=list)
    """The conversation, the prompt's messages included."""
    fate: str = "trained"
    """`trained`, or why its group was dropped (`DropReason`)."""
    before: list[float | None] | None = None
    """Log-probability of each token by the trainer's weights before the step, where the trainer told it."""
    ratios: list[float | None] | None = None
    """exp(`before` - `logprobs`): 1 where engine and trainer agree, and nothing was learned in between."""
    id: int = 0
    """Its place in run.db."""


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
    latest = {r.step: r for r in (as_record(nulls_to_nan(line), StepRecord, path) for line in iter_lines(path))}
    return [latest[step] for step in sorted(latest)]


def last_step(path: Path, at_most: float) -> StepRecord | None:
    """The last step of a run up to that one, whatever it has come to since. The file may be large."""
    last: dict[str, Any] = {"step": 0}
    for line in iter_lines(path):
        if not isinstance(line.get("step"), int):
            as_record(line, StepRecord, path)  # which says what it is not
        if last["step"] <= line["step"] <= at_most:
            last = line
    return as_record(nulls_to_nan(last), StepRecord, path) if last["step"] else None


def read_evals(path: Path) -> list[EvalRecord]:
    latest = {r.step: r for r in (as_record(nulls_to_nan(line), EvalRecord, path) for line in iter_lines(path))}
    return [latest[step] for step in sorted(latest)]


def read_notes(path: Path) -> list[NoteRecord]:
    return [as_record(line, NoteRecord, path) for line in iter_lines(path)]


def as_record(line: dict[str, Any], kind: type[Record], path: Path) -> Record:
    try:
        return msgspec.convert(line, kind)
    except msgspec.ValidationError as error:
        raise DataError(f"{path} holds a line that is no {kind.__name__}: {error}") from error


def nulls_to_nan(value: Any) -> Any:
    """A null is a number that does not exist, save for `agents`, which is a record that does not."""
    if isinstance(value, dict):
        return {key: nulls_to_nan(inner) for key, inner in value.items() if (key, inner) != ("agents", None)}
    return math.nan if value is None else value
