"""Advantages from rewards. A sample is compared within its group by the group's identity, never by its place."""

from collections import defaultdict
from collections.abc import Sequence
from math import sqrt

EPSILON = 1e-6


def advantages(rewards: Sequence[float], groups: Sequence[int], how: str) -> list[float]:
    """One advantage a sample; `groups[i]` names the group of sample i. Groups may differ in size.

    group:       (r − mean of its group) / (standard deviation of its group + ε)
    group_mean:  r − mean of its group                     (Dr.GRPO: no division, so hard and easy tasks weigh the same)
    batch:       (r − mean of the batch) / (standard deviation of the batch + ε)                    (AReaL's paper)
    """
    members: dict[int, list[int]] = defaultdict(list)
    for sample, group in enumerate(groups):
        members[group if how != "batch" else 0].append(sample)
    result = [0.0] * len(rewards)
    for samples in members.values():
        mean = sum(rewards[i] for i in samples) / len(samples)
        spread = sqrt(sum((rewards[i] - mean) ** 2 for i in samples) / len(samples))
        scale = 1.0 if how == "group_mean" else 1.0 / (spread + EPSILON)
        for i in samples:
            result[i] = (rewards[i] - mean) * scale
    return result
