"""The nouns everything speaks in, and what every room needs: errors, wording, files. No torch, no room above it.

What holds arrays is imported when it is first asked for: a reward worker starts without numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from freerun.core.errors import (
    ConfigError,
    DataError,
    EngineError,
    EngineLost,
    FreerunError,
    MachineLost,
    ProcessDied,
    ProcessKilled,
    RewardError,
    TrainerError,
    TrainerLost,
    WeightsError,
)
from freerun.core.groups import DropReason
from freerun.core.task import FinishReason, Task, Version

if TYPE_CHECKING:
    from freerun.core.nouns import Batch, Group, Sample

__all__ = [
    "Batch",
    "ConfigError",
    "DataError",
    "DropReason",
    "EngineError",
    "EngineLost",
    "FinishReason",
    "FreerunError",
    "Group",
    "MachineLost",
    "ProcessDied",
    "ProcessKilled",
    "RewardError",
    "Sample",
    "Task",
    "TrainerError",
    "TrainerLost",
    "Version",
    "WeightsError",
]


def __getattr__(name: str) -> Any:
    if name not in ("Batch", "Group", "Sample"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("freerun.core.nouns"), name)
