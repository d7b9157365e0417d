"""From a request to the tokens that the engine is given, and to the turn that they go on from."""

import asyncio
from dataclasses import dataclass

import numpy as np

from freerun.core.nouns import Tokens
from freerun.core.task import Message
from freerun.engines.base import Sampling
from freerun.engines.dialects.answers import AnswerReading
from freerun.engines.dialects.base import ChatRequest
from freerun.engines.refused import Refused
from freerun.rollouts.gateway.forks import ForkReason, reason_of
from freerun.rollouts.gateway.history import Digest, History, Match, digest_of, digest_of_tools
from freerun.rollouts.gateway.turns import SampledTurn
from freerun.rollouts.template import Rendering, Template, TemplateRefused

_LONG_TEXT = 20_000
"""Characters whose encoding is worth a thread: the loop goes on meanwhile."""


@dataclass(slots=True, frozen=True)
class SessionRules:
    """What all sessions of a rollout share."""

    template: Template
    reading: AnswerReading
    """How the model writes thoughts and calls of tools."""
    ends: frozenset[int]
    """The tokens that end an answer."""
    sampling: Sampling
    """The run's: it is the same for all requests, whatever they ask for."""
    context_tokens: int
    keeps_sampled: bool = True
    """Whether histories are what was sampled (`history: sampled`), or what the template makes of them."""


@dataclass(slots=True, frozen=True)
class Opening:
    """What the prompt holds of the answer already."""

    is_thinking: bool
    """The template has begun the model's thoughts."""
    begun: str
    """What the answer must begin with: what the client has put into its mouth, or the beginning of a call."""
    is_said: bool = False
    """The former: the client will send it back as a part of the answer."""


@dataclass(slots=True)
class Prompt:
    """Where a request goes on from, and with what."""

    parent: SampledTurn | None
    given: Tokens
    digests: list[Digest]
    """One for each of its messages."""
    tools: Digest
    fork: ForkReason | None
    opening: Opening

    @property
    def tokens(self) -> Tokens:
        return self.given if self.parent is None else np.concatenate([self.parent.tokens, self.given])


class Prompts:
    """Those of one session. `turns` are the session's, which grow."""

    def __init__(self, rules: SessionRules, turns: list[SampledTurn]) -> None:
        self._rules, self._turns = rules, turns
        self._histories: dict[Digest, History] = {}
        """By the tools that the policy is told of."""
        self._longest: dict[Digest, int] = {}
        """By the first message: how many messages its longest conversation has."""

    def answered(self, prompt: Prompt, turn: SampledTurn) -> None:
        """The prompt has an answer, from which later ones may go on."""
        said, opening = turn.said.message(), prompt.opening
        if opening.is_said:
            said["content"] = opening.begun + said["content"]
        self._histories[prompt.tools].add([*prompt.digests, digest_of(said)], turn)
        first = prompt.digests[0]
        self._longest[first] = max(self._longest.get(first, 0), turn.at + 1)

    async def of(self, request: ChatRequest) -> Prompt:
        messages, how = _asked(request), _rendering(request)
        tools, digests = digest_of_tools(how.tools, how.options), [digest_of(message) for message in messages]
        match = self._histories.setdefault(tools, History()).match(messages, digests)
        if not self._rules.keeps_sampled:
            return await self._rendered_anew(request, match, digests, tools)
        parent, fork = match.turn, self._fork(match, messages, digests, tools)
        if parent is not None:
            try:
                given, opening = self._tail(parent, match.at, request)
            except TemplateRefused:
                parent, fork = None, ForkReason.TEMPLATE
        if parent is None:
            given, opening = await self.whole(request)
        return Prompt(parent, np.asarray(given, np.int32), digests, tools, fork, opening)

    async def _rendered_anew(self, request: ChatRequest, match: Match, digests: list[Digest], tools: Digest) -> Prompt:
        """As the model is deployed: the template decides what is left of earlier turns. The prompt goes on from the
        longest turn whose tokens it begins with."""
        whole, opening = await self.whole(request)
        tokens = np.asarray(whole, np.int32)
        begins = [turn for turn in self._turns if _begins_with(tokens, turn)]
        parent = max(begins, key=lambda turn: len(turn.tokens), default=None)
        given = tokens if parent is None else tokens[len(parent.tokens) :]
        fork = self._fork(match, _asked(request), digests, tools)
        if match.turn is not None and parent is not match.turn:
            fork = ForkReason.TEMPLATE
        return Prompt(parent, given, digests, tools, fork, opening)

    def _tail(self, parent: SampledTurn, at: int, request: ChatRequest) -> tuple[list[int], Opening]:
        """What comes behind that turn. Its end is part of it, unless the policy's last token was that end."""
        text = self._rules.template.tail(_asked(request), at, _rendering(request))
        opening = self._opening(request, text)
        tokens = self._rules.template.encoded(text + opening.begun)
        sampled = parent.completion.tokens
        return tokens[1:] if tokens and len(sampled) and tokens[0] == sampled[-1] else tokens, opening

    def _opening(self, request: ChatRequest, prompt: str) -> Opening:
        reading = self._rules.reading
        is_thinking = reading.is_thinking(prompt)
        if request.continues:
            return Opening(is_thinking, request.messages[-1]["content"], is_said=True)
        begun = reading.opening(request, is_thinking)
        return Opening(is_thinking, begun)

    def _fork(self, match: Match, messages: list[Message], digests: list[Digest], tools: Digest) -> ForkReason | None:
        """None where it is the session's first request, or goes on from where a branch ended."""
        if not self._turns or (match.turn is not None and not match.turn.children):
            return None
        if self._histories[tools].knows_beginning(digests[0]):
            return reason_of(match, messages, self._longest.get(digests[0], 0))
        others = (history for key, history in self._histories.items() if key != tools)
        return ForkReason.TOOLS if any(other.knows_beginning(digests[0]) for other in others) else ForkReason.NEW

    async def whole(self, request: ChatRequest) -> tuple[list[int], Opening]:
        """All of its messages, as the template has them."""
        template = self._rules.template
        try:
            text = template.whole(_asked(request), _rendering(request))
        except TemplateRefused as error:
            raise Refused(f"the model's chat template refuses these messages: {error}", "messages") from None
        opening = self._opening(request, text)
        text += opening.begun
        if len(text) < _LONG_TEXT:
            return template.encoded(text), opening
        return await asyncio.to_thread(template.encoded, text), opening


def _asked(request: ChatRequest) -> list[Message]:
    """What the answer follows: all messages, but for its own beginning."""
    return request.messages[:-1] if request.continues else request.messages


def _rendering(request: ChatRequest) -> Rendering:
    return Rendering(request.offered_tools, request.template_options)


def _begins_with(tokens: Tokens, turn: SampledTurn) -> bool:
    known = turn.tokens
    return len(known) < len(tokens) and bool((tokens[: len(known)] == known).all())
