"""What a rollout is: a task and a client in, one sample for each member of the group out.

`Rollout` is what a user writes (`own.py` runs it, `client.py` is what it is given); `GroupRollout` is what the
controller calls. Single-turn is the first of these; conversations, tools and agents do not change the controller. An
EngineError is the engine's failure: the group is tried again, then dropped with a reason. Any other failure comes back
as data, in the trajectories.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from freerun.core import Sample, Task
from freerun.core.trajectory import Trajectory
from freerun.engines.base import Client

if TYPE_CHECKING:
    from freerun.rollouts.client import RolloutClient


class Rollout(Protocol):
    """A user's own: an async function, or a class whose instances are like one."""

    async def __call__(self, task: Task, client: "RolloutClient") -> Sequence[Sample | Trajectory]:
        """`client.group_size` of them. It may raise: that costs the group, and is counted."""
        ...


class GroupRollout(Protocol):
    async def __call__(self, task: Task, client: Client) -> Sequence[Sample | Trajectory]: ...


def trajectories_of(results: Sequence[Sample | Trajectory]) -> list[Trajectory]:
    return [result if isinstance(result, Trajectory) else Trajectory(result) for result in results]
