"""The life of a group as plain events: what the book of groups records, what observers see, what a file can keep.

dealt → admitted → sampled → judged → ready → training → trained
            └─────────┴─────────┴───────┴────────┴───→ dropped, with a reason
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from freerun.core.task import Version


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Where a task stands in the data: its epoch, and its index in that epoch's order."""

    epoch: int = 0
    index: int = 0


class Stage(StrEnum):
    """How far a group has come. The last two are ends."""

    DEALT = "dealt"
    """Its task was taken from the data; it waits to be admitted."""
    ADMITTED = "admitted"
    """The staleness formula has room for it: it is being sampled."""
    SAMPLED = "sampled"
    """All its samples are there: they are being judged."""
    JUDGED = "judged"
    """Its rewards are known."""
    READY = "ready"
    """It waits for the trainer."""
    TRAINING = "training"
    """A training step is learning from it."""
    TRAINED = "trained"
    """A training step has consumed it."""
    DROPPED = "dropped"
    """It will not be trained on, for a counted reason."""

    @property
    def is_end(self) -> bool:
        return self in (Stage.TRAINED, Stage.DROPPED)


class DropReason(StrEnum):
    """Why a group was not trained on."""

    NO_SIGNAL = "no_signal"
    """All its rewards are equal and the filter is on: it would teach nothing."""
    TOO_STALE = "too_stale"
    """Its tokens are older than the bound, under `when_stale: drop` (or `mask` with nothing left)."""
    ROLLOUT_FAILED = "rollout_failed"
    """The engine failed to answer it, retries included."""
    ROLLOUT_ERROR = "rollout_error"
    """The user's own rollout raised, or failed too many of its samples."""
    JUDGE_FAILED = "judge_failed"
    """Too few of its samples could be judged."""
    RUN_ENDED = "run_ended"
    """The run ended while it was still running or waiting. A resumed run deals its task again."""


@dataclass(frozen=True, slots=True)
class GroupEvent:
    """A group reached a stage."""

    stage: Stage
    group: int
    task: str
    """The task's id."""
    position: Position
    version: Version
    """The version that the stage is about: engines' when it was admitted, the trainer's when it was trained or
    dropped, and in between the one it was admitted at."""
    samples: int = 0
    """How many samples were asked for."""
    rewards: tuple[float, ...] = ()
    """Known from `judged` on."""
    judgements: tuple[str, ...] = ()
    """With `judged`: how judging each sample ended, samples without a reward included."""
    reason: DropReason | None = None
    """Why it was dropped, with `dropped`."""


@dataclass(frozen=True, slots=True)
class Tally:
    """How groups ended since the run's start, resumes included."""

    trained: int = 0
    dropped: dict[DropReason, int] = field(default_factory=dict)
    judgements: dict[str, int] = field(default_factory=dict)
    """Samples, by how judging them ended."""


class TallyCounter:
    """Counts how groups end, from their events."""

    def __init__(self, before: Tally | None = None) -> None:
        """`before` is the tally of the run that this one goes on from."""
        before = before or Tally()
        self._trained = before.trained
        self._dropped = Counter(before.dropped)
        self._judgements = Counter(before.judgements)

    def count(self, event: GroupEvent) -> None:
        self._trained += event.stage is Stage.TRAINED
        self._judgements.update(event.judgements)
        if event.reason:
            self._dropped[event.reason] += 1

    @property
    def tally(self) -> Tally:
        return Tally(self._trained, dict(self._dropped), dict(self._judgements))
