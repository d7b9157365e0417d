"""Engines of Freerun's own that run already (`engine.urls`): what must be so before a run relies on one."""

import numpy as np

from freerun.core import ConfigError, EngineError, Sample
from freerun.engines.base import Completion, Sampling
from freerun.engines.http import HttpEngine
from freerun.engines.refused import Refused
from freerun.train.base import Trainer

_TOKENS = 16
_APART = 0.05
"""Nats by which log-probabilities of the same model may differ, mean over a few tokens: more than bf16 makes them, and
less than another model does."""


async def check_engine(engine: HttpEngine, vocab_size: int) -> None:
    """That it is an engine of ours, fresh, and with this vocabulary."""
    try:
        version = (await engine.stats()).version  # unlike its health, for those alone who have its key
    except EngineError as error:
        raise ConfigError(
            f"engine.urls: no engine of Freerun's answers at {engine.url} ({error}): start one by `freerun serve`, set "
            "engine.kind to what runs there, or FREERUN_ENGINE_KEY to its key"
        ) from None
    if version:
        raise ConfigError(f"engine.urls: the engine at {engine.url} has version {version} of another run: restart it")
    for token, known in ((vocab_size - 1, True), (vocab_size, False)):
        if await _knows(engine, token) != known:
            raise ConfigError(
                f"engine.urls: the engine at {engine.url} has another vocabulary than this run's {vocab_size:,} "
                "tokens: serve the model of model.path there"
            )


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


async def _knows(engine: HttpEngine, token: int) -> bool:
    try:
        async for _ in engine.generate([token], Sampling(1)):
            pass
    except Refused:
        return False
    return True
