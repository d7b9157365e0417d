"""A sample put together from what was given and what was sampled, in turns."""

from collections.abc import Sequence

import numpy as np

from freerun.core import FinishReason, Sample
from freerun.core.nouns import NOT_SAMPLED, VersionRuns
from freerun.engines.base import Completion

TurnTokens = list[int] | Completion
"""Tokens that were given, or that the policy sampled."""


def sample_of_turns(turns: Sequence[TurnTokens], finish: FinishReason, text: str) -> Sample:
    """Not judged yet. The policy learns from the sampled turns alone."""
    every = [turn if isinstance(turn, Completion) else _given(turn) for turn in turns]
    return Sample(
        tokens=np.concatenate([turn.tokens for turn in every]),
        loss_mask=np.repeat([isinstance(turn, Completion) for turn in turns], [len(turn.tokens) for turn in every]),
        behavior_logprobs=np.concatenate([turn.logprobs for turn in every]),
        versions=VersionRuns.joined(run for turn in every for run in turn.versions.runs),
        finish=finish,
        text=text,
    )


def _given(tokens: list[int]) -> Completion:
    """As if nobody had sampled an answer."""
    logprobs, versions = np.zeros(len(tokens), np.float32), VersionRuns.joined([(NOT_SAMPLED, len(tokens))])
    return Completion(0, tokens, logprobs, versions, FinishReason.STOP)
