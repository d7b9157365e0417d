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
from freerun.core.nouns import Batch, FinishReason, Group, Released, Sample, Task, Version

__all__ = [
    "Batch",
    "ConfigError",
    "DataError",
    "EngineError",
    "FinishReason",
    "FreerunError",
    "Group",
    "ProcessDied",
    "Released",
    "RewardError",
    "Sample",
    "Task",
    "TrainerError",
    "Version",
    "WeightsError",
]
