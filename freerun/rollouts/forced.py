"""Answers of forced lengths, for benchmarks: each one's length is drawn from a lognormal distribution.

Each answer is a request of its own, since the answers of a group differ in length.
"""

import asyncio
import random
from dataclasses import replace

from freerun.core import Sample, Task
from freerun.engines.base import Client, Sampling
from freerun.rollouts.single_turn import Decoder, SingleTurn


class ForcedLengths:
    def __init__(
        self, tokenizer: Decoder, sampling: Sampling, group_size: int, mu: float, sigma: float, shortest: int = 1
    ) -> None:
        """Lengths are clipped to `shortest` and `sampling.max_new_tokens`. They depend on the task's id alone."""
        self._tokenizer = tokenizer
        self._sampling = replace(sampling, ignore_eos=True)
        self._group_size = group_size
        self._mu, self._sigma, self._shortest = mu, sigma, shortest

    def lengths(self, task: Task) -> list[int]:
        dice = random.Random(task.id)
        drawn = [int(dice.lognormvariate(self._mu, self._sigma)) for _ in range(self._group_size)]
        return [min(max(length, self._shortest), self._sampling.max_new_tokens) for length in drawn]

    async def __call__(self, task: Task, client: Client) -> list[Sample]:
        answers = [
            SingleTurn(self._tokenizer, replace(self._sampling, max_new_tokens=length), 1)(task, client)
            for length in self.lengths(task)
        ]
        return [sample for samples in await asyncio.gather(*answers) for sample in samples]
