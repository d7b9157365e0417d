"""What controller and trainer say to each other: method → (argument, result), in msgpack. Importable without torch."""

from typing import Any

from freerun.core import Batch, Sample
from freerun.train.base import StepResult
from freerun.weights.base import WeightsHandle

METHODS: dict[str, tuple[Any, Any]] = {
    "step": (Batch, StepResult),
    "sft": (list[Sample], StepResult),
    "publish": (None, WeightsHandle),
    "save": (str, None),
}
