"""The nouns everything speaks in, and what every room needs: errors, wording, files. No torch, no room above it."""

from freerun.core.errors import (
    ConfigError,
    DataError,
    EngineError,
    FreerunError,
    ProcessDied,
    RewardError,
    TrainerError,
    WeightsError,
)
from freerun.core.groups import DropReason
from freerun.core.nouns import Batch, FinishReason, Group, Sample, Task, Version

__all__ = [
    "Batch",
    "ConfigError",
    "DataError",
    "DropReason",
    "EngineError",
    "FinishReason",
    "FreerunError",
    "Group",
    "ProcessDied",
    "RewardError",
    "Sample",
    "Task",
    "TrainerError",
    "Version",
    "WeightsError",
]
