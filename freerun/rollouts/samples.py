"""A sample put together from what was given and what was sampled, in turns."""

from collections.abc import Sequence

import numpy as np

from freerun.core import FinishReason, Sample
from freerun.core.nouns import NOT_SAMPLED, VersionRuns
from freerun.engines.base import Completion

Turn = list[int] | Completion
"""Tokens that were given, or that the policy sampled."""


def sample_of_turns(turns: Sequence[Turn], finish: FinishReason, text: str) -> Sample:
    """Not judged yet. The policy learns from the sampled turns alone."""
    sampled = [turn if isinstance(turn, Completion) else _given(turn, finish) for turn in turns]
    versions = VersionRuns.joined(run for turn in sampled for run in turn.versions.runs)
    return Sample(
        tokens=np.concatenate([turn.tokens for turn in sampled]),
        loss_mask=versions.by_token() != NOT_SAMPLED,
        behavior_logprobs=np.concatenate([turn.logprobs for turn in sampled]),
        versions=versions,
        finish=finish,
        text=text,
    )


def _given(tokens: list[int], finish: FinishReason) -> Completion:
    """Tokens that nobody sampled, in the form of a completion."""
    return Completion(0, tokens, [0.0] * len(tokens), [NOT_SAMPLED] * len(tokens), finish)
