"""What a rollout is: a task and a client in, one or more samples out.

Single-turn is the first; conversations, tools and agents are further files beside it, and the controller does not
change for them. A rollout may raise EngineError (retried, then dropped with a reason); anything else ends the run.
"""

from typing import Protocol

from freerun.core import Sample, Task
from freerun.engines.base import Client


class Rollout(Protocol):
    async def __call__(self, task: Task, client: Client) -> list[Sample]: ...
