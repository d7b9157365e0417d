"""Freerun: asynchronous reinforcement learning for language models, from a laptop to a cluster.

This is the public surface; docs/api.md shows how to use it. Names are imported when they are first used, so that
`import freerun` is fast and needs no torch.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from freerun.config.tree import RunConfig
    from freerun.core.errors import ConfigError, EngineError, FreerunError
    from freerun.core.nouns import Batch, Group, Sample
    from freerun.core.observer import Observer
    from freerun.core.records import StepRecord
    from freerun.core.reports import Evaluation, StepResult
    from freerun.core.task import FinishReason, Task, Version
    from freerun.core.trajectory import Trajectory
    from freerun.engines.base import Client, Completion, Engine, Sampling
    from freerun.engines.config import EngineConfig
    from freerun.engines.embedded.in_process import InProcessEngine
    from freerun.rewards.base import Judge, Judged, JudgedSample, JudgeReason
    from freerun.rollouts.agents.session import AgentSession
    from freerun.rollouts.base import Rollout
    from freerun.rollouts.client import RolloutClient
    from freerun.rollouts.conversation import Conversation
    from freerun.run.script import train, train_async
    from freerun.run.training import Outcome
    from freerun.train.config import TrainConfig
    from freerun.train.learner import Learner

__version__ = "0.1.0"

__all__ = [
    "AgentSession",
    "Batch",
    "Client",
    "Completion",
    "ConfigError",
    "Conversation",
    "Engine",
    "EngineConfig",
    "EngineError",
    "Evaluation",
    "FinishReason",
    "FreerunError",
    "Group",
    "InProcessEngine",
    "Judge",
    "JudgeReason",
    "Judged",
    "JudgedSample",
    "Learner",
    "Observer",
    "Outcome",
    "Rollout",
    "RolloutClient",
    "RunConfig",
    "Sample",
    "Sampling",
    "StepRecord",
    "StepResult",
    "Task",
    "TrainConfig",
    "Trajectory",
    "Version",
    "train",
    "train_async",
]

_HOMES = {
    "freerun.config.tree": ("RunConfig",),
    "freerun.core.errors": ("ConfigError", "EngineError", "FreerunError"),
    "freerun.core.nouns": ("Batch", "FinishReason", "Group", "Sample", "Task", "Version"),
    "freerun.core.observer": ("Observer",),
    "freerun.core.records": ("StepRecord",),
    "freerun.core.reports": ("Evaluation", "StepResult"),
    "freerun.core.trajectory": ("Trajectory",),
    "freerun.engines.base": ("Client", "Completion", "Engine", "Sampling"),
    "freerun.engines.config": ("EngineConfig",),
    "freerun.engines.embedded.in_process": ("InProcessEngine",),
    "freerun.rewards.base": ("Judge", "Judged", "JudgedSample", "JudgeReason"),
    "freerun.rollouts.agents.session": ("AgentSession",),
    "freerun.rollouts.base": ("Rollout",),
    "freerun.rollouts.client": ("RolloutClient",),
    "freerun.rollouts.conversation": ("Conversation",),
    "freerun.run.training": ("Outcome",),
    "freerun.run.script": ("train_async",),
    "freerun.train.config": ("TrainConfig",),
    "freerun.train.learner": ("Learner",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'freerun' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOME[name]), name)
    return found


class _Surface(ModuleType):
    """`freerun.train` is the function. The room of the same name would take its place as soon as a part of it is
    imported; it stays where every import looks for it, in `sys.modules`."""

    @property
    def train(self) -> Any:
        return import_module("freerun.run.script").train

    @train.setter
    def train(self, room: ModuleType) -> None:
        pass


sys.modules[__name__].__class__ = _Surface


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
