"""Training on preference pairs: learn from given pairs until the steps are done, and look at others now and then."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from freerun.control.config import DpoConfig
from freerun.control.evaluate import summarise
from freerun.control.waiting import unbroken
from freerun.core import Batch, Sample, Version
from freerun.core.observer import Observer
from freerun.core.reports import Evaluation
from freerun.core.state import RunState
from freerun.train.base import Trainer

_MORE_THAN_NOTHING = math.ulp(0.0)
AT_ONCE = 128
"""Answers that the trainer is asked to score in one request."""


@dataclass(frozen=True)
class PairEvaluator:
    """Whether the policy prefers the better answers of held-out pairs."""

    samples: Sequence[Sample]
    """Chosen and rejected answers in turns; their `behavior_logprobs` are the reference's."""
    beta: float

    async def evaluate(self, trainer: Trainer) -> Evaluation:
        """A pair passes where its margin is positive; the mean reward is the mean margin."""
        scores = await scored(trainer, self.samples)
        moved = [sum(score) - float(sample.behavior_logprobs.sum(dtype=float))
                 for score, sample in zip(scores, self.samples, strict=True)]  # fmt: skip
        pairs = zip(moved[::2], moved[1::2], strict=True)
        margins: list[list[float | None]] = [[self.beta * (chosen - rejected)] for chosen, rejected in pairs]
        return summarise(margins, truncated=0, pass_reward=_MORE_THAN_NOTHING)


async def dpo(
    config: DpoConfig,
    trainer: Trainer,
    batches: Iterator[Batch],
    evaluator: PairEvaluator | None,
    observer: Observer,
    state_at: Callable[[Version], RunState],
    begins: Version = 0,
    *,
    steps: int,
    evaluate_every: int,
) -> None:
    """`begins` is the trainer's version; `state_at` says what is needed to go on from a step that has just been done.
    The present version is evaluated every so many steps, and after the last."""

    async def learn(batch: Batch) -> None:
        observer.learning(batch, masked_tokens=0)
        observer.doing("trainer", f"learns from batch {batch.version}")
        result = await trainer.dpo(batch.samples, config.beta)
        observer.stepped(result)
        for warning in result.warnings:
            observer.note(warning)
        await observer.settled(state_at(result.version))

    for step, batch in zip(range(begins + 1, steps + 1), batches, strict=False):
        await unbroken(learn(batch))
        if evaluator and (step % evaluate_every == 0 or step == steps):
            observer.doing("trainer", f"evaluates version {step}")
            observer.evaluated(step, await evaluator.evaluate(trainer))


async def scored(trainer: Trainer, samples: Sequence[Sample]) -> list[list[float]]:
    """The log-probabilities of all their answers' tokens, by the present version."""
    scores: list[list[float]] = []
    for start in range(0, len(samples), AT_ONCE):
        scores += await trainer.score(list(samples[start : start + AT_ONCE]))
    return scores
