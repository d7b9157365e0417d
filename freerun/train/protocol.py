"""What controller and trainer say to each other: method → (argument, result), in msgpack. Importable without torch."""

from dataclasses import dataclass
from typing import Any

from freerun.core import Batch, Sample, Version
from freerun.core.reports import StepResult, WeightsHandle


@dataclass(slots=True, frozen=True)
class Checkpoint:
    """The wish for a checkpoint of that version, in the folder of the run's checkpoints."""

    version: Version
    folder: str
    control: str


METHODS: dict[str, tuple[Any, Any]] = {
    "step": (Batch, StepResult),
    "sft": (list[Sample], StepResult),
    "score": (list[Sample], list[list[float]]),
    "publish": (None, WeightsHandle),
    "save": (str, None),
    "checkpoint": (Checkpoint, None),
    "written": (None, None),
}
