"""Advantages from rewards. A member is compared within its group by the group's identity, never by its place.

One number a member, the same for all tokens of all its branches. Where it was rewarded turn by turn there is one a
turn; with a critic there is one a token (`gae.py`).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot, sqrt

EPSILON = 1e-6


@dataclass(slots=True, frozen=True)
class Scale:
    """What a reward is worth among others: (reward − baseline) · factor."""

    baseline: float
    factor: float

    def advantage(self, reward: float) -> float:
        return (reward - self.baseline) * self.factor


def advantages(rewards: Sequence[float], groups: Sequence[int], how: str) -> list[float]:
    """One advantage a member; `groups[i]` names the group of member i. Groups may differ in size.

    group:       (r − mean of its group) / (standard deviation of its group + ε)                          (GRPO)
                 the sample's deviation, Σ(r − mean)² / (n − 1), as verl, TRL and AReaL have it
    group_mean:  r − mean of its group                     (Dr.GRPO: no division, so hard and easy tasks weigh the same)
    rloo:        r − mean of the others of its group       (RLOO: unbiased; n/(n − 1) times group_mean)
    none:        0                     (rewards teach nothing: another signal does, such as a teacher's)
    batch:       (r − mean of the batch) / (standard deviation of the batch + ε)           (AReaL's paper, REINFORCE++)
                 of all answers, Σ(r − mean)² / n

    A group of one has nobody to be compared with, and gets 0 unless by batch. So do equal rewards, exactly: what
    rounding leaves of them would count as something to learn.
    """
    scales = scales_of([[reward] for reward in rewards], groups, how)
    return [scale.advantage(reward) for scale, reward in zip(scales, rewards, strict=True)]


def scales_of(returns: Sequence[Sequence[float]], groups: Sequence[int], how: str) -> list[Scale]:
    """For each member; `returns[i]` are those of its turns, at least one: the rewards still to come at each.

    One baseline a group, r̄ = mean over members of the mean over a member's turns, so a member of many turns weighs as
    one of few. In the same way (r − mean)² above is the mean over a member's turns.
    """
    compared: dict[int, list[int]] = defaultdict(list)
    for member, group in enumerate(groups):
        compared[group if how != "batch" else 0].append(member)
    result = [Scale(0.0, 0.0)] * len(returns)
    for members in compared.values():
        scale = _scale([returns[i] for i in members], how)
        for i in members:
            result[i] = scale
    return result


def _scale(members: Sequence[Sequence[float]], how: str) -> Scale:
    if how == "none":
        return Scale(0.0, 0.0)
    baseline = _mean([_mean(turns) for turns in members])
    factor = _factor(how, len(members), hypot(*(_distance(turns, baseline) for turns in members)))
    return Scale(baseline, factor if len(members) > 1 or how == "batch" else 0.0)


def _distance(turns: Sequence[float], baseline: float) -> float:
    """The root of their mean square; of equal turns exactly that of one."""
    counted = turns if len(set(turns)) > 1 else turns[:1]
    return hypot(*(value - baseline for value in counted)) / sqrt(len(counted))


def _mean(values: Sequence[float]) -> float:
    """The mean of equal numbers is exactly that number."""
    return values[0] if len(set(values)) == 1 else sum(values) / len(values)


def _factor(how: str, size: int, distance: float) -> float:
    """`distance` is the root of the summed squares of all members' distances from the baseline."""
    if how == "group":
        return 1 / (distance / sqrt(max(size - 1, 1)) + EPSILON)
    if how == "batch":
        return 1 / (distance / sqrt(size) + EPSILON)
    if how == "group_mean":
        return 1.0
    if how == "rloo":
        return size / max(size - 1, 1)
    raise ValueError(f"there are no advantages {how!r} from rewards alone")


def overlong_penalty(length: int, longest: int, buffer: int) -> float:
    """DAPO's soft punishment (equation 13), to be added to an answer's reward: from 0 to −1 over the last `buffer` of
    the `longest` tokens that an answer may have.

        0                                   length ≤ longest − buffer
        (longest − buffer − length)/buffer  up to longest
        −1                                  beyond
    """
    if buffer == 0:
        return 0.0
    return max(-1.0, min(0.0, (longest - buffer - length) / buffer))
