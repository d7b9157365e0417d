"""What a user's rollout is given: the policy to talk to, as tokens or as a conversation."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

from freerun.core import Task
from freerun.core.trajectory import Trajectory
from freerun.engines.base import Client, Completion, Sampling
from freerun.rollouts.conversation import Conversation
from freerun.rollouts.failure import Failure, guarded
from freerun.rollouts.template import ChatTokenizer

Member = Callable[[Conversation], Awaitable[Trajectory | float | None]]
"""One member's part: it comes to a trajectory; or to a reward for its conversation; or to None, for the judge."""


class RolloutClient:
    """For one group. `sampling` is how the run (or the evaluation) samples, `group_size` how many samples it wants."""

    def __init__(self, client: Client, tokenizer: ChatTokenizer, sampling: Sampling, group_size: int) -> None:
        self.tokenizer = tokenizer
        self.sampling = sampling
        self.group_size = group_size
        self._client = client

    def generate(self, prompt: list[int], sampling: Sampling | None = None, n: int = 1) -> AsyncIterator[Completion]:
        """n answers to these tokens, each as it ends."""
        return self._client.generate(prompt, sampling or self.sampling, n)

    def conversation(self, task: Task, member: int = 0) -> Conversation:
        """A new one, that begins with the task's prompt. Members that talk at the same time need numbers of their own,
        for what is sampled not to depend on who is faster."""
        return Conversation(task, self.tokenizer, self.sampling, _Numbered(self._client, member).generate)

    async def each_member(self, task: Task, member: Member) -> list[Trajectory]:
        """Have every member of the group do this, all at the same time, each in a conversation of its own. One that
        raises fails alone."""
        try:
            async with asyncio.TaskGroup() as group:
                going = [group.create_task(self._one(task, member, index)) for index in range(self.group_size)]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in going]

    async def _one(self, task: Task, member: Member, index: int) -> Trajectory:
        conversation = self.conversation(task, index)
        ended = await guarded(partial(member, conversation))
        match ended:
            case Failure():
                return conversation.failed(ended.reason)
            case Trajectory():
                return ended
        return conversation.result(ended)


class _Numbered:
    """Requests of one member, whose seeds depend on its number and theirs alone."""

    def __init__(self, client: Client, member: int) -> None:
        self._client, self._member, self._requests = client, member, 0

    def generate(self, prompt: list[int], sampling: Sampling) -> AsyncIterator[Completion]:
        self._requests += 1
        return self._client.generate(prompt, sampling, 1, f"{self._member}/{self._requests}")
