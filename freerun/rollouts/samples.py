"""A sample put together from what was given and what was sampled, in turns."""

from collections.abc import Sequence

from freerun.core import FinishReason, Sample
from freerun.core.nouns import NOT_SAMPLED, Version
from freerun.engines.base import Completion

Turn = list[int] | Completion
"""Tokens that were given, or that the policy sampled."""


def sample_of_turns(turns: Sequence[Turn], finish: FinishReason, text: str) -> Sample:
    """Not judged yet. The policy learns from the sampled turns alone."""
    tokens: list[int] = []
    loss_mask: list[bool] = []
    logprobs: list[float] = []
    versions: list[Version] = []
    for turn in turns:
        if isinstance(turn, Completion):
            tokens += turn.tokens
            loss_mask += [True] * len(turn.tokens)
            logprobs += turn.logprobs
            versions += turn.versions
        else:
            tokens += turn
            loss_mask += [False] * len(turn)
            logprobs += [0.0] * len(turn)
            versions += [NOT_SAMPLED] * len(turn)
    return Sample(tokens, loss_mask, logprobs, versions, finish, text)
