"""Runs a user's rollout for the controller: whatever goes wrong in it comes back as data, and is said once."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from numbers import Real
from typing import Any

from freerun.core import Sample, Task
from freerun.core.trajectory import Trajectory
from freerun.engines.base import Client, Sampling
from freerun.rollouts.base import Rollout, trajectories_of
from freerun.rollouts.client import RolloutClient
from freerun.rollouts.failure import Failure, guarded
from freerun.rollouts.said_once import SaidOnce
from freerun.rollouts.template import ChatTokenizer

_LARGEST = 3.4e38
"""Rewards are trained on in 32 bits."""


class OwnRollout:
    """Invariant: a group has `group_size` trajectories, each with a sample that fits the run's plan, or an error."""

    def __init__(
        self,
        rollout: Rollout,
        tokenizer: ChatTokenizer,
        sampling: Sampling,
        group_size: int,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._rollout = rollout
        self._tokenizer, self._sampling, self._group_size = tokenizer, sampling, group_size
        self._failed = SaidOnce(note, "your rollout failed")

    async def __call__(self, task: Task, client: Client) -> list[Trajectory]:
        given = RolloutClient(client, self._tokenizer, self._sampling, self._group_size)
        ended = await guarded(partial(self._rollout, task, given))
        wrong = ended.reason if isinstance(ended, Failure) else self._wrong_shape(ended)
        if wrong or isinstance(ended, Failure):
            trajectories = [Trajectory.failed(wrong or "")] * self._group_size
        else:
            trajectories = [self._checked(task, trajectory) for trajectory in trajectories_of(ended)]
        for error in {trajectory.error for trajectory in trajectories if trajectory.error is not None}:
            self._failed.say(error)
        return trajectories

    def _wrong_shape(self, results: Any) -> str | None:
        """What is wrong with what it returned."""
        if not isinstance(results, Sequence) or not all(isinstance(one, Sample | Trajectory) for one in results):
            return f"a rollout must return a list of Sample or Trajectory, not {results!r:.100}"
        if len(results) != self._group_size:
            return (
                f"a rollout returned {len(results)} samples, but the group has client.group_size={self._group_size}: "
                "return a Trajectory.failed(reason) for each that failed"
            )
        return None

    def _checked(self, task: Task, trajectory: Trajectory) -> Trajectory:
        sample, error = trajectory.sample, trajectory.error
        if error is not None:
            return trajectory
        error = "a trajectory has neither a sample nor an error" if sample is None else self._unfit(task, sample)
        reward = trajectory.reward
        if reward is not None and not (isinstance(reward, Real) and math.isfinite(reward) and abs(reward) <= _LARGEST):
            error = f"a reward must be a finite number, not {reward!r:.100}"
        return Trajectory.failed(error, trajectory.messages) if error else trajectory

    def _unfit(self, task: Task, sample: Sample) -> str | None:
        """Longer samples than the run has planned for may not fit the trainer's memory."""
        most = len(task.prompt_tokens) + self._sampling.max_new_tokens
        if len({len(sample.tokens), len(sample.loss_mask), len(sample.behavior_logprobs), len(sample.versions)}) > 1:
            return "a sample's tokens, loss_mask, behavior_logprobs and versions differ in length"
        if not sample.num_sampled:
            return "a sample holds nothing that the policy sampled"
        if len(sample.tokens) > most:
            return (
                f"a sample of {len(sample.tokens)} tokens is longer than its prompt and rollout.max_new_tokens "
                f"({most}): raise that, or end sooner"
            )
        return None
