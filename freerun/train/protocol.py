"""What controller and trainer say to each other: method → (argument, result), in msgpack. Importable without torch.

Samples follow their request in messages of their own: see `messages.py`.
"""

from dataclasses import dataclass
from typing import Any

from freerun.core import Sample, Version
from freerun.core.reports import StepResult, WeightsHandle


@dataclass(slots=True, frozen=True)
class Checkpoint:
    """The wish for a checkpoint of that version, in the folder of the run's checkpoints."""

    version: Version
    folder: str
    control: str
    token: str
    """A file that the controller has put there: whether the trainer sees it tells whether they share the folder."""


@dataclass(slots=True, frozen=True)
class Written:
    """A checkpoint is complete; when it was written, in seconds of the trainer's monotonic clock."""

    version: Version
    start_s: float
    end_s: float


@dataclass(slots=True, frozen=True)
class Copied:
    """What a checkpoint is of is copied; it will be complete when the next one is begun, or `written` returns."""

    machines: list[str]
    """Where it is written: each rank's machine."""
    sharing: int
    """How many ranks share one copy of the weights."""
    shared: bool
    """Whether the first rank writes it where the controller sees it."""
    notes: list[str]
    """What the run should be told."""
    written: Written | None = None
    """The one before, unless that was told already."""
    failed: str = ""
    """Why the one before could not be written. The disk has nothing of it."""
    refused: str = ""
    """Why this one could not be begun."""


@dataclass(slots=True, frozen=True)
class GroupHead:
    """A group without its samples, and of its task the name alone."""

    id: int
    task: str
    admitted_at: Version


@dataclass(slots=True, frozen=True)
class BatchHead:
    """A batch without its samples."""

    version: Version
    groups: list[GroupHead]


@dataclass(slots=True, frozen=True)
class Preferences:
    """What a step of DPO is asked with: chosen and rejected answers in turns."""

    samples: list[Sample]
    beta: float


METHODS: dict[str, tuple[Any, Any]] = {
    "step": (BatchHead, StepResult),
    "sft": (None, StepResult),
    "dpo": (float, StepResult),
    "score": (None, list[list[float]]),
    "publish": (None, WeightsHandle),
    "save": (str, None),
    "checkpoint": (Checkpoint, Copied),
    "written": (None, Written | None),
}
