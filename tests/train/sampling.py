"""Batches that a real engine sampled, with new weights in the middle of its answers where a test says so."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from freerun.core import Batch, Group, Sample, Task
from freerun.engines.base import Sampling
from freerun.engines.config import EngineConfig
from freerun.engines.embedded.engine import EmbeddedEngine
from freerun.models.decoder import Decoder

Weights = Mapping[str, torch.Tensor]


def an_engine(decoder: Decoder, **config: Any) -> EmbeddedEngine:
    return EmbeddedEngine(decoder, EngineConfig.model_validate(config).on("cpu"))


def sampled(
    engine: EmbeddedEngine,
    groups: int = 12,
    size: int = 4,
    tokens: int = 24,
    seed: int = 0,
    swaps: Sequence[tuple[int, Weights]] = (),
    **sampling: Any,
) -> list[Group]:
    """Groups whose answers have so many tokens, rewarded at random. `swaps` are weights, and after how many of the
    engine's steps they come."""
    dice, due = random.Random(seed), list(swaps)
    prompts = [[dice.randrange(2, 48) for _ in range(dice.randrange(2, 9))] for _ in range(groups)]
    how = Sampling(max_new_tokens=tokens, seed=seed, ignore_eos=True, **sampling)
    for number, prompt in enumerate(prompts):
        engine.submit(str(number), prompt, how, size)
    answers: dict[tuple[int, int], Sample] = {}
    steps = 0
    while engine.has_work:
        if due and steps == due[0][0]:
            engine.update_weights(engine.version + 1, due.pop(0)[1])
        steps += 1
        for id, answer in engine.step():
            prompt, count = prompts[int(id)], len(answer.tokens)
            answers[int(id), answer.index] = Sample(
                [*prompt, *answer.tokens],
                [False] * len(prompt) + [True] * count,
                [0.0] * len(prompt) + answer.logprobs,
                [-1] * len(prompt) + answer.versions,
                answer.finish,
                reward=float(dice.random() < 0.5),
            )
    return [
        Group(number, Task(str(number), "", []), [answers[number, i] for i in range(size)], 0)
        for number in range(groups)
    ]


def batch_of(version: int, *groups: Sequence[Group]) -> Batch:
    return Batch(version, [group for several in groups for group in several])
