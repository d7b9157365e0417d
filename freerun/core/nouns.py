"""Task, Sample, Group, Batch, Version: the words of Freerun as plain data.

They cross process borders as msgpack, so they hold only strings, numbers, lists and each other.
All per-token lists of a sample are aligned with `tokens`, prompt included, so a conversation of many
turns (sampled and given tokens interleaved) is the same shape as a single answer.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import compress
from typing import Any

Version = int
"""Of the policy: 0 is the starting checkpoint, and each training step adds one."""

NOT_SAMPLED: Version = -1
"""The version of a token that no policy sampled: a prompt's, or a tool's answer."""


class FinishReason(StrEnum):
    """Why a sample ended, as the engine saw it."""

    STOP = "stop"
    """The policy ended it: a stop token or a stop string."""
    LENGTH = "length"
    """It ran into a length limit: truncated."""
    ABORT = "abort"
    """Somebody cancelled it."""


@dataclass(slots=True, frozen=True)
class Task:
    """A prompt, and what is needed to judge an answer to it."""

    id: str
    prompt: str
    """The text the policy sees, chat template applied: for people and judges."""
    prompt_tokens: list[int]
    """The tokens the policy sees. What is trained on is exactly these and what was sampled after them."""
    answer: str | None = None
    """The reference answer, where the task has one."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Everything else the data gave: a judge may need it."""


@dataclass(slots=True)
class Sample:
    """One answer. Lists are aligned with `tokens`; `loss_mask` is true where the policy sampled the token."""

    tokens: list[int]
    loss_mask: list[bool]
    behavior_logprobs: list[float]
    versions: list[Version]
    finish: FinishReason
    text: str = ""
    """The sampled text, for judges and people."""
    reward: float | None = None
    """None until judged; still None when judging failed, and then the sample is not trained on."""

    @property
    def num_sampled(self) -> int:
        return len(self.versions) - self.versions.count(NOT_SAMPLED)

    @property
    def oldest_version(self) -> Version:
        """The oldest version among its sampled tokens (of an empty answer: NOT_SAMPLED)."""
        return min(set(self.versions) - {NOT_SAMPLED}, default=NOT_SAMPLED)

    @property
    def trained_versions(self) -> Iterator[Version]:
        """Of each token with a loss."""
        return compress(self.versions, self.loss_mask)

    @property
    def truncated(self) -> bool:
        return self.finish is FinishReason.LENGTH


@dataclass(slots=True)
class Group:
    """The samples of one task, and the version at which the task was admitted."""

    id: int
    """Counts admissions, so a smaller id is an older group."""
    task: Task
    samples: list[Sample]
    admitted_at: Version
    _oldest: Version | None = field(default=None, init=False, repr=False, compare=False)
    _newest: Version | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def oldest_version(self) -> Version:
        """The version of its oldest sampled token; of a group without any, when it was admitted. Found once: a group
        that waits is asked with every other that arrives."""
        if self._oldest is None:
            self._oldest = min((s.oldest_version for s in self.samples if s.num_sampled), default=self.admitted_at)
        return self._oldest

    @property
    def newest_version(self) -> Version:
        """The version of its newest token (without a sampled one: NOT_SAMPLED). Found once, too."""
        if self._newest is None:
            self._newest = max((max(s.versions, default=NOT_SAMPLED) for s in self.samples), default=NOT_SAMPLED)
        return self._newest

    @property
    def rewards(self) -> list[float]:
        return [s.reward for s in self.samples if s.reward is not None]


@dataclass(slots=True)
class Batch:
    """What one training step consumes. `version` is the trainer's before the step."""

    version: Version
    groups: list[Group]

    @property
    def samples(self) -> list[Sample]:
        return [sample for group in self.groups for sample in group.samples]
