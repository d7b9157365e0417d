"""A sample put together from what was given and what was sampled, in turns."""

from collections.abc import Sequence

import numpy as np

from freerun.core import FinishReason, Sample
from freerun.core.nouns import NOT_SAMPLED, Routes, Tokens, VersionRuns
from freerun.engines.base import Completion

TurnTokens = list[int] | Completion
"""Tokens that were given, or that the policy sampled."""


def sample_of_turns(turns: Sequence[TurnTokens], finish: FinishReason, text: str) -> Sample:
    """Not judged yet. The policy learns from the sampled turns alone."""
    every = [turn if isinstance(turn, Completion) else given_tokens(turn) for turn in turns]
    return Sample(
        tokens=np.concatenate([turn.tokens for turn in every]),
        loss_mask=np.repeat([isinstance(turn, Completion) for turn in turns], [len(turn.tokens) for turn in every]),
        behavior_logprobs=np.concatenate([turn.logprobs for turn in every]),
        versions=VersionRuns.joined(run for turn in every for run in turn.versions.runs),
        finish=finish,
        text=text,
        routes=routes_of(every),
    )


def routes_of(pieces: Sequence[Completion]) -> Routes | None:
    """Which experts each token went through, given ones included: each as it was when the next was sampled. The last
    one's are not known, nor those of what was given behind the last answer."""
    known = [piece.routes for piece in pieces if piece.routes is not None]
    if not known:
        return None
    rows, covered, end = [], 0, 0
    for piece in pieces:
        end += len(piece.tokens)
        if piece.routes is not None and len(piece.routes) == end - 1:
            rows.append(piece.routes[covered:])
            covered = end - 1
    rows.append(np.full((end - covered, known[0].shape[1]), 255, np.uint8))
    return np.concatenate(rows)


def given_tokens(tokens: list[int] | Tokens) -> Completion:
    """As if nobody had sampled an answer."""
    logprobs, versions = np.zeros(len(tokens), np.float32), VersionRuns.joined([(NOT_SAMPLED, len(tokens))])
    return Completion(0, tokens, logprobs, versions, FinishReason.STOP)
