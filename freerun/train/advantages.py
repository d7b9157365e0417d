"""Advantages from rewards. A sample is compared within its group by the group's identity, never by its place.

One number a sample, the same for all of its tokens; with a critic there is one a token (`gae.py`).
"""

from collections import defaultdict
from collections.abc import Sequence
from math import hypot, sqrt

EPSILON = 1e-6


def advantages(rewards: Sequence[float], groups: Sequence[int], how: str) -> list[float]:
    """One advantage a sample; `groups[i]` names the group of sample i. Groups may differ in size.

    group:       (r − mean of its group) / (standard deviation of its group + ε)                          (GRPO)
                 the sample's deviation, Σ(r − mean)² / (n − 1), as verl, TRL and AReaL have it
    group_mean:  r − mean of its group                     (Dr.GRPO: no division, so hard and easy tasks weigh the same)
    rloo:        r − mean of the others of its group       (RLOO: unbiased; n/(n − 1) times group_mean)
    batch:       (r − mean of the batch) / (standard deviation of the batch + ε)           (AReaL's paper, REINFORCE++)
                 of all answers, Σ(r − mean)² / n

    A group of one has nobody to be compared with, and gets 0 unless by batch. So do equal rewards, exactly: what
    rounding leaves of them would count as something to learn.
    """
    members: dict[int, list[int]] = defaultdict(list)
    for sample, group in enumerate(groups):
        members[group if how != "batch" else 0].append(sample)
    result = [0.0] * len(rewards)
    for samples in members.values():
        equal = len({rewards[i] for i in samples}) == 1
        mean = rewards[samples[0]] if equal else sum(rewards[i] for i in samples) / len(samples)
        scale = _scale(how, len(samples), hypot(*(rewards[i] - mean for i in samples)))
        for i in samples:
            result[i] = (rewards[i] - mean) * scale
    return result


def _scale(how: str, size: int, distance: float) -> float:
    """`distance` is the root of the summed squares of all distances from the mean."""
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
