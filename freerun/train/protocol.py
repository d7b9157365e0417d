"""What controller and trainer say to each other: method → (argument, result), in msgpack. Importable without torch.

Samples follow their request in messages of their own: see `messages.py`.
"""

from dataclasses import dataclass
from typing import Any

from freerun.core import Version
from freerun.core.reports import StepResult, WeightsHandle


@dataclass(slots=True, frozen=True)
class Checkpoint:
    """The wish for a checkpoint of that version, in the folder of the run's checkpoints."""

    version: Version
    folder: str
    control: str


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


METHODS: dict[str, tuple[Any, Any]] = {
    "step": (BatchHead, StepResult),
    "sft": (None, StepResult),
    "score": (None, list[list[float]]),
    "publish": (None, WeightsHandle),
    "save": (str, None),
    "checkpoint": (Checkpoint, list[str]),
    "written": (None, None),
}
