"""What the policy said in a session, and the samples that it comes to.

A turn is one answer of the engine's: the tokens that it was given, those that it sampled with their log-probabilities
and versions, all as the engine reported them. Turns form a tree: one whose context begins with all of another's tokens
goes on from it. A leaf and the turns above it are one sample. A sampled token is trained on once, in the first leaf
that holds it; in others it is given.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from freerun.core import FinishReason, Sample
from freerun.core.nouns import NOT_SAMPLED, Returns, Tokens, VersionRuns
from freerun.core.task import Message
from freerun.core.turns import Turn
from freerun.engines.base import Completion
from freerun.engines.dialects.base import Said
from freerun.rollouts.samples import given_tokens, routes_of


@dataclass(slots=True, eq=False)
class SampledTurn:
    number: int
    """Counts the session's answers, in the order in which they ended."""
    parent: "SampledTurn | None"
    given: Tokens
    """What it was given behind its parent's tokens; without a parent, all of its prompt."""
    completion: Completion
    said: Said
    messages: list[Message]
    """Those of its request. Held by the last turn of a conversation alone, like `tokens`."""
    at: int
    """The place of its own message behind those."""
    cut: bool = False
    """Whether it ran into the run's own limits: a client's limit is as it should be."""
    began: int = 0
    """How many of the session's answers had ended when it was asked for."""
    reward: float | None = None
    """What it was given of its own, all together."""
    children: list["SampledTurn"] = field(default_factory=list)
    left_out: str | None = None
    """Why it is not trained on (`Apart`): nobody used it."""
    _tokens: Tokens | None = None

    @property
    def tokens(self) -> Tokens:
        """Its whole context and what it sampled. Held by the last turn of a conversation alone: each begins with all of
        the one before."""
        pieces: list[Tokens] = []
        turn: SampledTurn | None = self
        while turn is not None:
            if turn._tokens is not None:
                pieces.append(turn._tokens)
                turn._tokens = None
                break
            pieces += [turn.completion.tokens, turn.given]
            turn = turn.parent
        self._tokens = np.concatenate(pieces[::-1]) if len(pieces) > 1 else pieces[0]
        return self._tokens

    @property
    def path(self) -> list["SampledTurn"]:
        """From the first turn of the conversation to this one."""
        path = [self]
        while path[-1].parent is not None:
            path.append(path[-1].parent)
        return path[::-1]


def leaves(turns: Sequence[SampledTurn]) -> list[SampledTurn]:
    """Those that no other goes on from, in the order in which they ended. One that was used is never left out."""
    return [turn for turn in turns if not turn.children and not turn.left_out]


def samples_of(turns: Sequence[SampledTurn], returns: Sequence[float] | None) -> list[Sample]:
    """One for each leaf, not judged yet. `returns` is what is still to come of the rewards at each turn, by number;
    None where no turn has a reward of its own."""
    claimed: set[int] = set()
    return [_sample(leaf, claimed, returns) for leaf in leaves(turns)]


def _sample(leaf: SampledTurn, claimed: set[int], returns: Sequence[float] | None) -> Sample:
    path = leaf.path
    marks, logprobs, versions, worth = [], [], [], []
    for turn in path:
        given, sampled = len(turn.given), turn.completion
        is_first = turn.number not in claimed
        claimed.add(turn.number)
        marks += [np.zeros(given, np.bool_), np.full(len(sampled.tokens), is_first, np.bool_)]
        logprobs += [np.zeros(given, np.float32), sampled.logprobs if is_first else np.zeros_like(sampled.logprobs)]
        versions.append((NOT_SAMPLED, given))
        versions += sampled.versions.runs if is_first else [(NOT_SAMPLED, len(sampled.tokens))]
        worth += [(0.0, given), (returns[turn.number] if returns else 0.0, len(sampled.tokens))]
    return Sample(
        tokens=leaf.tokens,
        loss_mask=np.concatenate(marks),
        behavior_logprobs=np.concatenate(logprobs),
        versions=VersionRuns.joined(versions),
        finish=FinishReason.LENGTH if leaf.cut else FinishReason.STOP,
        text=leaf.said.content,
        returns=_runs(worth) if returns else None,
        turns=_conversation(leaf, path),
        routes=routes_of([piece for turn in path for piece in (given_tokens(turn.given), turn.completion)]),
    )


def _runs(worth: Sequence[tuple[float, int]]) -> Returns:
    return tuple((value, count) for value, count in worth if count)


def _conversation(leaf: SampledTurn, path: Sequence[SampledTurn]) -> list[Turn]:
    """What was said, by anybody. Where the policy spoke, its own words, not what the client made of them."""
    spoken, start = {}, 0
    for turn in path:
        start += len(turn.given)
        end = start + len(turn.completion.tokens)
        spoken[turn.at] = Turn(turn.said.message(), True, start, end, turn.reward)
        start = end
    others = {at: Turn(message) for at, message in enumerate(leaf.messages)}
    return [turn for _, turn in sorted((others | spoken).items())]
