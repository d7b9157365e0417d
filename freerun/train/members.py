"""The members of a batch: one try of a task each, with one sample or, where its conversation has branches, several.

Rewards, penalties, comparisons and weights are a member's, and all its branches have them. What is summed over its
tokens is summed over its branches: a sampled token has its version and its loss in one of them only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from freerun.core import Group, Sample
from freerun.core.nouns import Returns, member_places, member_returns
from freerun.train.advantages import scales_of
from freerun.train.average import sequence_weights
from freerun.train.packing import num_trained


@dataclass(slots=True, frozen=True)
class Member:
    group: int
    """Whom it is compared with."""
    places: list[int]
    """Where its samples are in the batch."""
    samples: list[Sample]

    @property
    def num_sampled(self) -> int:
        return sum(sample.num_sampled for sample in self.samples)


def members_in(groups: Sequence[Group]) -> list[Member]:
    members: list[Member] = []
    start = 0
    for group in groups:
        for places in member_places(group.samples):
            samples = [group.samples[place] for place in places]
            members.append(Member(group.id, [start + place for place in places], samples))
        start += len(group.samples)
    return members


def trained_in(groups: Sequence[Group], skip_truncated: bool) -> list[Member]:
    """Those that a step learns from, with those of their samples that have something to train."""
    found = []
    for member in members_in(groups):
        branches = zip(member.places, member.samples, strict=True)
        kept = {place: s for place, s in branches if num_trained(s) and not (skip_truncated and s.truncated)}
        if kept:
            found.append(Member(member.group, list(kept), list(kept.values())))
    return found


def by_sample(members: Sequence[Member], found: Sequence[Sequence[Returns]]) -> list[Returns]:
    """What each member's samples have, in the order of the batch. They are all of its samples."""
    places = [place for member in members for place in member.places]
    ordered = sorted(zip(places, (one for of_member in found for one in of_member), strict=True))
    return [one for _, one in ordered]


@dataclass(slots=True, frozen=True)
class Added:
    """To a member's reward, at its end: so it is still to come at each of its tokens."""

    penalty: float = 0.0
    cost: float = 0.0

    def to(self, reward: float) -> float:
        return reward + self.penalty - self.cost


def returned(members: Sequence[Member], added: Sequence[Added]) -> list[list[Returns]]:
    """By token, what is still to come of the rewards; of each member's samples."""
    return [[_returns(s, more) for s in member.samples] for member, more in zip(members, added, strict=True)]


def _returns(sample: Sample, added: Added) -> Returns:
    returns = sample.returns or ((sample.reward or 0.0, len(sample.tokens)),)
    return tuple((added.to(value), count) for value, count in returns)


def compared(members: Sequence[Member], added: Sequence[Added], how: str) -> list[list[Returns]]:
    """Advantages by token; of each member's samples."""
    turns = [[more.to(value) for value in member_returns(m.samples)] for m, more in zip(members, added, strict=True)]
    scales = scales_of(turns, [member.group for member in members], how)
    return [
        [tuple((scale.advantage(value), count) for value, count in returns) for returns in of_member]
        for of_member, scale in zip(returned(members, added), scales, strict=True)
    ]


def weights_of(members: Sequence[Member], average: str, longest: int) -> dict[int, float]:
    """What each trained token counts in the loss, by its sample's place. They all have some."""
    trained = [sum(map(num_trained, member.samples)) for member in members]
    weights = sequence_weights(trained, average, longest or max(trained))
    return {place: weight for member, weight in zip(members, weights, strict=True) for place in member.places}
