"""Sample, Group, Batch: what is sampled and trained on, as plain data.

What a sample has by token is in arrays, nine bytes a token: a batch has tens of millions of them. Where the model is a
mixture of experts there are some hundred more, which say what each token went through. They are aligned with
`tokens`, prompt included, so a conversation of many turns (sampled and given tokens interleaved) is the same shape as a
single answer.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from freerun.core.task import FinishReason, Task, Version
from freerun.core.turns import Turn
from freerun.core.versions import NOT_SAMPLED as NOT_SAMPLED
from freerun.core.versions import VersionRuns as VersionRuns

Tokens = NDArray[np.int32]
Marks = NDArray[np.bool_]
Logprobs = NDArray[np.float32]
Routes = NDArray[np.uint8]
"""By token, some bytes that say which experts it went through (`models/routes.py`)."""
Returns = tuple[tuple[float, int], ...]
"""By token, as runs: what is still to come of the rewards, and for how many tokens in a row."""


class Sample:
    """One answer. Arrays are aligned with `tokens`; `loss_mask` is true where the policy sampled the token.

    To change the mask, give it another: how many tokens of each version have a loss is counted when it is set, since
    millions of them are asked for at once, when a batch is chosen, and the loop waits.
    """

    __slots__ = (
        *("_loss_mask", "behavior_logprobs", "finish", "member", "returns", "reward", "routes"),
        *("text", "tokens", "trained", "turns", "versions"),
    )

    def __init__(
        self,
        tokens: Sequence[int] | Tokens,
        loss_mask: Sequence[bool] | Marks,
        behavior_logprobs: Sequence[float] | Logprobs,
        versions: Sequence[Version] | VersionRuns,
        finish: FinishReason,
        text: str = "",
        reward: float | None = None,
        member: int | None = None,
        returns: Returns | None = None,
        turns: Sequence[Turn] = (),
        routes: Routes | None = None,
    ) -> None:
        """Arrays of the right type are kept as they are; lists become arrays. `text` is what was sampled, for judges
        and people. `reward` is None until it is judged; still None when judging failed, and then the sample is not
        trained on.

        `member` says which member of its group it is a branch of, where members have several samples; None: it is one
        by itself. The reward is the member's, the same for all its branches. `returns` is what is still to come of the
        member's rewards at each token, where it was given some on its way; None: the reward, at every token. `routes`
        says which experts each token went through in the engine, where that is known and there are such.
        """
        self.tokens: Tokens = np.asarray(tokens, np.int32)
        self.behavior_logprobs: Logprobs = np.asarray(behavior_logprobs, np.float32)
        self.versions = VersionRuns.of(versions)
        self.loss_mask = loss_mask
        self.finish, self.text, self.reward = finish, text, reward
        self.member, self.returns, self.turns = member, returns, tuple(turns)
        self.routes = routes

    @property
    def loss_mask(self) -> Marks:
        return self._loss_mask

    @loss_mask.setter
    def loss_mask(self, marks: Sequence[bool] | Marks) -> None:
        marks = np.asarray(marks, np.bool_)
        trained: dict[Version, int] = {}
        for version, start, end in self.versions.stretches():
            if count := int(np.count_nonzero(marks[start:end])):
                trained[version] = trained.get(version, 0) + count
        self._mark(marks, trained)

    def _mark(self, marks: Marks, trained: dict[Version, int]) -> None:
        self._loss_mask = marks.view()
        self._loss_mask.flags.writeable = False
        self.trained = trained
        """How many tokens with a loss each version has."""

    @property
    def num_sampled(self) -> int:
        return self.versions.num_sampled

    @property
    def oldest_version(self) -> Version:
        """The oldest version among its sampled tokens (of an empty answer: NOT_SAMPLED)."""
        return self.versions.oldest

    def trains_older_than(self, version: Version) -> bool:
        """Whether a sampled token of an earlier version has a loss."""
        return any(NOT_SAMPLED < trained < version for trained in self.trained)

    def mask_older_than(self, version: Version) -> int:
        """Take the loss from sampled tokens of earlier versions; how many had one."""
        old = {trained: count for trained, count in self.trained.items() if NOT_SAMPLED < trained < version}
        if old:
            marks = self.loss_mask.copy()
            for sampled_by, start, end in self.versions.stretches():
                if sampled_by in old:
                    marks[start:end] = False
            self._mark(marks, {v: count for v, count in self.trained.items() if v not in old})
        return sum(old.values())

    @property
    def truncated(self) -> bool:
        return self.finish is FinishReason.LENGTH

    @property
    def turn_returns(self) -> list[float]:
        """What was still to come of the rewards at each of its turns: trained tokens in a row that have one return. The
        first token of all is predicted by nothing, and is not trained."""
        returns = self.returns or ((self.reward or 0.0, len(self.tokens)),)
        values = np.repeat([value for value, _ in returns], [count for _, count in returns])
        trained, begins = self.loss_mask[1:], np.ones(max(len(self.tokens) - 1, 0), np.bool_)
        begins[1:] = (values[2:] != values[1:-1]) | ~trained[:-1]
        turns: list[float] = values[1:][begins & trained].tolist()
        return turns


def trained_by_version(samples: Iterable[Sample]) -> Counter[Version]:
    """How many tokens with a loss each version has."""
    counts: dict[Version, int] = {}
    for sample in samples:
        for version, count in sample.trained.items():
            counts[version] = counts.get(version, 0) + count
    return Counter(counts)


def member_places(samples: Iterable[Sample]) -> list[list[int]]:
    """Where each member's samples are among the samples of one group. One that names no member is one by itself."""
    members: list[list[int]] = []
    known: dict[int, int] = {}
    for place, sample in enumerate(samples):
        member = len(members) if sample.member is None else known.setdefault(sample.member, len(members))
        if member == len(members):
            members.append([])
        members[member].append(place)
    return members


def member_returns(branches: Sequence[Sample]) -> list[float]:
    """What was still to come of a member's rewards at each of its turns. One number, its reward, where it was given
    nothing on its way, and where none of its tokens is trained."""
    turns: list[float] = []
    if any(branch.returns is not None for branch in branches):
        turns = [value for branch in branches for value in branch.turn_returns]
    return turns or [branches[0].reward or 0.0]


@dataclass(slots=True)
class Group:
    """The samples of one task, and the version at which the task was admitted. A member of the group has one sample, or
    several where its conversation has branches."""

    id: int
    """Counts admissions, so a smaller id is an older group."""
    task: Task
    samples: list[Sample]
    admitted_at: Version
    unjudged: list[Sample] = field(default_factory=list)
    """Samples that could not be judged: they are no part of it, and kept for people to read."""
    engine: str = ""
    """The name of the engine that sampled it, where that is known."""
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
            self._newest = max((s.versions.newest for s in self.samples), default=NOT_SAMPLED)
        return self._newest

    @property
    def members(self) -> list[list[Sample]]:
        """The samples of each member, in the order of the members' first ones."""
        return [[self.samples[place] for place in places] for places in member_places(self.samples)]

    @property
    def rewards(self) -> list[float]:
        """One for each member that has one."""
        return [reward for branches in self.members if (reward := branches[0].reward) is not None]

    @property
    def has_signal(self) -> bool:
        """Whether its members can be told apart: rewards differ, or what they were given on their way does."""
        members = self.members
        if len(members) < 2:
            return False
        return len({value for branches in members for value in member_returns(branches)}) > 1


@dataclass(slots=True)
class Batch:
    """What one training step consumes. `version` is the trainer's before the step."""

    version: Version
    groups: list[Group]

    @property
    def samples(self) -> list[Sample]:
        return [sample for group in self.groups for sample in group.samples]
