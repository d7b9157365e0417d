"""Whether an engine that runs already (`engine.urls`) has the weights that the trainer begins with."""

import numpy as np

from freerun.core import ConfigError, Sample
from freerun.engines.base import Completion, Sampling
from freerun.engines.http import HttpEngine
from freerun.train.base import Trainer

_TOKENS = 16
_APART = 0.05
"""Nats by which log-probabilities of the same model may differ, mean over a few tokens: more than bf16 makes them, and
less than another model does."""


async def check_model(engine: HttpEngine, trainer: Trainer) -> None:
    """That it has the trainer's weights: both must find what it samples as likely."""
    [answer] = [one async for one in engine.generate([0], Sampling(_TOKENS, ignore_eos=True))]
    [scores] = await trainer.score([_sample(answer)])
    apart = float(np.abs(np.array(scores) - answer.logprobs).mean())
    if not apart < _APART:
        raise ConfigError(
            f"engine.urls: the engine at {engine.url} has another model than model.path (log-probabilities differ by "
            f"{apart:.2f}): serve that one there"
        )


def _sample(answer: Completion) -> Sample:
    length = len(answer.tokens) + 1
    return Sample(
        tokens=np.concatenate(([0], answer.tokens)).astype(np.int32),
        loss_mask=np.arange(length) > 0,
        behavior_logprobs=np.concatenate(([0.0], answer.logprobs)).astype(np.float32),
        versions=[0] * length,
        finish=answer.finish,
    )
