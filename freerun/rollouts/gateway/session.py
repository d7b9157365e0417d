"""One member's session: everything that its agent asks the policy, and the trajectory that it comes to.

Consumes requests, several at a time if the agent makes them so; produces turns, and in the end a trajectory. Waits for
the engine. `close` ends it: what is running is cancelled, and what comes later is refused.

Promises that a turn's tokens, log-probabilities and versions are the engine's own, and that its context is what the
engine was given. Nothing that was sampled is encoded again to be trained on.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import count
from typing import Protocol

import numpy as np

from freerun.core import EngineError, FinishReason
from freerun.core.nouns import Tokens
from freerun.core.reports import SessionReport
from freerun.core.trajectory import Trajectory
from freerun.engines.base import Client, Completion, Sampling
from freerun.engines.dialects.answers import Mint
from freerun.engines.dialects.base import ChatRequest, Said, Usage
from freerun.engines.dialects.response_store import ResponseStore
from freerun.engines.refused import Refused
from freerun.rollouts.gateway.forks import Apart, ForkReason, overridden
from freerun.rollouts.gateway.prompts import Opening, Prompt, Prompts, SessionRules
from freerun.rollouts.gateway.turns import SampledTurn, leaves, samples_of

_MOST_ANSWERS = 128
"""To one request, as at OpenAI: each is a branch, and all are sampled at the same time."""


class SessionEnded(Refused):
    def __init__(self) -> None:
        super().__init__(
            "this session has ended: its agent has returned, or was stopped", code="session_ended", status=410
        )


@dataclass(slots=True)
class Reply:
    """The answers to one request."""

    id: str
    said: list[Said]
    usage: Usage
    prompt: Tokens
    turns: list[SampledTurn]
    """Empty where they are not trained on."""


@dataclass(slots=True, eq=False)
class _Asked:
    """A request on its way."""

    prompt: bytes
    abandoned: bool = False


class Sampler(Protocol):
    """A Client, as one session uses it."""

    def within_session(self, prompt: list[int], sampling: Sampling, n: int, name: str) -> AsyncIterator[Completion]: ...


class Session:
    def __init__(self, key: str, rules: SessionRules, client: Client | Sampler, name: str) -> None:
        """`name` is the member's, and its try's: seeds depend on it."""
        self.key = key
        self.closed = False
        self._rules, self._client, self._name = rules, client, name
        self._turns: list[SampledTurn] = []
        self._prompts = Prompts(rules, self._turns)
        self._by_prompt: defaultdict[bytes, list[SampledTurn]] = defaultdict(list)
        self._by_id: dict[str, list[SampledTurn]] = {}
        self._occurrences = Counter[bytes]()
        self._going: set[asyncio.Future[list[Completion]]] = set()
        self._asked: set[_Asked] = set()
        self._numbers = count()
        self.responses = ResponseStore()
        """For requests that go on from an earlier one by its id."""
        self._ran_out = False
        self._before_any_turn = 0.0
        """Rewards that were given before the policy had said anything."""
        self._rewarded = False
        self.report = SessionReport()

    async def ask(self, request: ChatRequest, *, is_retry: bool = False) -> Reply:
        """Answers that are trained on. `is_retry`: the client says that it asks again because it got no answer."""
        self._check_open()
        number = next(self._numbers)
        prompt = await self._prompts.of(request)
        tokens = prompt.tokens
        sampling = self._sampling(request, len(tokens))
        key = blake2b(tokens.tobytes(), digest_size=16).digest()
        if is_retry:
            self._retry(key)
        began = len(self._turns)
        asked = _Asked(key)
        self._asked.add(asked)
        self.report.requests += 1
        try:
            completions = await self._sampled(tokens, sampling, request, key)
        except asyncio.CancelledError:
            self._count_apart(Apart.RETRIED if asked.abandoned else Apart.ORPHANED, 1)
            raise
        finally:
            self._asked.discard(asked)
        turns = [
            self._record(one, request, prompt, number, began, sampling.max_new_tokens < self._most(len(tokens)))
            for one in completions
        ]
        self._count(prompt, len(tokens), completions, key)
        self._by_prompt[key] += turns
        if asked.abandoned:
            self._leave_out(turns, Apart.RETRIED)
        self._by_id[id := f"{self.key[:8]}{number}"] = turns
        said = [turn.said for turn in turns]
        return Reply(id, said, self._usage(len(tokens), completions, said), tokens, turns)

    async def serve(self, request: ChatRequest) -> Reply:
        """Answers of the same model that are not trained on, sampled as the request asks: for users and judges."""
        self._check_open()
        number = next(self._numbers)
        given, opening = await self._prompts.whole(request)
        tokens, body = np.asarray(given, np.int32), request.body
        sampling = replace(
            self._sampling(request, len(tokens)),
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=max(body.top_k, 0),
        )
        completions = await self._sampled(tokens, sampling, request, b"fixed" + tokens.tobytes())
        said = [self._said(one, request, opening, number) for one in completions]
        usage = self._usage(len(tokens), completions, said)
        return Reply(f"{self.key[:8]}{number}", said, usage, tokens, [])

    async def count(self, request: ChatRequest) -> int:
        """How many tokens these messages are."""
        self._check_open()
        tokens, _ = await self._prompts.whole(request)
        return len(tokens)

    def reward(self, value: float, response: str | None = None) -> None:
        """For the turn that ended last, or for that response's."""
        self._check_open()
        self._rewarded = True
        turns = self._turns if response is None else self._by_id.get(_bare(response), [])
        if response is not None and not turns:
            raise Refused(f"there is no response {response!r} in this session to reward", "response")
        if turns:
            turns[-1].reward = (turns[-1].reward or 0.0) + value
        else:
            self._before_any_turn += value

    def word(self, token: int) -> str:
        """What a token says."""
        return self._rules.reading.decode_all([token])

    def hung_up(self, reply: Reply) -> None:
        """The client was gone before it had the reply."""
        self._leave_out(reply.turns, Apart.ORPHANED)

    def close(self) -> None:
        self.closed = True
        for going in self._going:
            going.cancel()

    @property
    def has_turns(self) -> bool:
        return any(not turn.left_out for turn in self._turns)

    def trajectory(self, returned: float | None) -> Trajectory:
        """What is trained on. `returned` is the reward that the agent ended with, if it did with one."""
        for turns in self._by_prompt.values():
            self._leave_out(overridden(turns), Apart.OVERRIDDEN)
        used = [turn for turn in self._turns if not turn.left_out]
        self.report.turns = len(used)
        last = used[-1]
        last.cut = last.cut or self._ran_out
        samples = samples_of(self._turns, self._returns(returned or 0.0) if self._rewarded else None)
        main = samples.pop(next(place for place, leaf in enumerate(leaves(self._turns)) if last in leaf.path))
        reward = returned
        if self._rewarded:
            reward = (returned or 0.0) + self._before_any_turn + sum(turn.reward or 0.0 for turn in self._turns)
        messages = [turn.message for turn in main.turns]
        return Trajectory(main, messages, reward, branches=samples, session=self.report)

    def _returns(self, last: float) -> list[float]:
        """What is still to come at each turn: its own reward and those of all that ended after it, on any branch, for
        what the policy does can matter to all of these; and what the agent ended with."""
        returns, to_come = [0.0] * len(self._turns), last + self._before_any_turn
        for turn in reversed(self._turns):
            to_come += turn.reward or 0.0
            returns[turn.number] = to_come
        return returns

    def _most(self, prompt_tokens: int) -> int:
        return min(self._rules.sampling.max_new_tokens, self._rules.context_tokens - prompt_tokens)

    def _sampling(self, request: ChatRequest, prompt_tokens: int) -> Sampling:
        """The run's, with the request's own ends."""
        if request.n > _MOST_ANSWERS:
            raise Refused(f"n is {request.n}, and at most {_MOST_ANSWERS}: ask several times", "n")
        most = self._most(prompt_tokens)
        if most < 1:
            self._ran_out = True
            raise Refused(
                f"a conversation of {prompt_tokens} tokens leaves no room for an answer: rollout.context_tokens is "
                f"{self._rules.context_tokens}",
                code="context_length_exceeded",
            )
        stops = tuple(dict.fromkeys((*self._rules.sampling.stop, *request.stop)))
        return replace(self._rules.sampling, max_new_tokens=min(most, request.max_tokens or most), stop=stops)

    async def _sampled(self, tokens: Tokens, sampling: Sampling, request: ChatRequest, key: bytes) -> list[Completion]:
        """Seeds depend on what is asked, and how often it was before: not on how parallel requests interleave."""
        seed = getattr(request.body, "seed", None)
        name = f"{self._name}/{seed}/{key.hex()}/{self._occurrences[key]}"
        self._occurrences[key] += 1
        stream = self._client.within_session(tokens.tolist(), sampling, request.n, name)
        going = asyncio.ensure_future(_all(stream))
        self._going.add(going)
        try:
            return await going
        except EngineError as error:
            raise Refused(f"the engine failed: {error}", status=503) from None
        except asyncio.CancelledError:
            if self.closed:
                self._check_open()
            raise
        finally:
            going.cancel()
            self._going.discard(going)

    def _record(
        self, completion: Completion, request: ChatRequest, prompt: Prompt, number: int, began: int, own_limit: bool
    ) -> SampledTurn:
        said = self._said(completion, request, prompt.opening, number)
        asked = request.messages[: len(prompt.digests)]
        turn = SampledTurn(
            number=len(self._turns),
            parent=prompt.parent,
            given=prompt.given,
            completion=completion,
            said=said,
            messages=asked,
            at=len(asked),
            cut=completion.finish is FinishReason.LENGTH and not own_limit,
            began=began,
        )
        self._turns.append(turn)
        if prompt.parent is not None:
            self._take_back(prompt.parent)
            prompt.parent.children.append(turn)
            prompt.parent.messages = []  # its child has them
        self._prompts.answered(prompt, turn)
        return turn

    def _said(self, completion: Completion, request: ChatRequest, opening: Opening, number: int) -> Said:
        reader = self._rules.reading.reader(
            *(request, _ids(number, completion.index), self._rules.ends, completion.index),
            *(opening.is_thinking, opening.begun),
        )
        return reader.add(completion.tokens.tolist(), completion.logprobs.tolist(), completion.finish)

    def _count(self, prompt: Prompt, tokens: int, completions: Sequence[Completion], key: bytes) -> None:
        report, parent = self.report, prompt.parent
        fork = ForkReason.AGAIN if self._by_prompt[key] else prompt.fork
        forks = Counter([fork] if fork else []) + Counter({ForkReason.AGAIN: len(completions) - 1})
        for reason, times in forks.items():
            report.forks[reason] = report.forks.get(reason, 0) + times
        cached = max(one.cached for one in completions)
        report.prompt_tokens += tokens
        report.cached_tokens += cached
        if parent is not None and completions[0].versions.oldest > parent.completion.versions.newest:
            report.reread_tokens += max(tokens - len(prompt.given) - cached, 0)

    def _usage(self, prompt_tokens: int, completions: Sequence[Completion], said: Sequence[Said]) -> Usage:
        sampled = sum(len(one.tokens) for one in completions)
        thought = sum(map(self._rules.reading.reasoning_tokens, said))
        return Usage(prompt_tokens, sampled, max(one.cached for one in completions), thought)

    def _retry(self, key: bytes) -> None:
        """The answers to that prompt that are there, or on their way, did not reach the client."""
        for asked in self._asked:
            asked.abandoned = asked.abandoned or asked.prompt == key
        self._leave_out([turn for turn in self._by_prompt[key] if not turn.children], Apart.RETRIED)

    def _leave_out(self, turns: Sequence[SampledTurn], why: Apart) -> None:
        unused = [turn for turn in turns if not turn.left_out and not turn.children]
        for turn in unused:
            turn.left_out = why
            if turn.parent is not None:
                turn.parent.children.remove(turn)
                turn.parent.messages = turn.messages[: turn.parent.at]
        self._count_apart(why, len(unused))

    def _take_back(self, turn: SampledTurn | None) -> None:
        """A conversation goes on from it: whatever was thought of it, or of those above it, they are used."""
        while turn is not None and turn.left_out is not None:
            self._count_apart(Apart(turn.left_out), -1)
            turn.left_out = None
            if turn.parent is not None:
                turn.parent.children.append(turn)
            turn = turn.parent

    def _count_apart(self, why: Apart, answers: int) -> None:
        if counted := self.report.apart.pop(why, 0) + answers:
            self.report.apart[why] = counted

    def _check_open(self) -> None:
        if self.closed:
            raise SessionEnded


async def _all(stream: AsyncIterator[Completion]) -> list[Completion]:
    return sorted([completion async for completion in stream], key=lambda completion: completion.index)


def _bare(response: str) -> str:
    """An id without its dialect's prefix."""
    return response.replace("_", "-").rpartition("-")[2]


def _ids(number: int, choice: int) -> Mint:
    """Ids of tool calls, which clients send back: nine letters and digits, as some templates ask for, each once in a
    session."""
    return lambda index: f"c{_base36(number, 4)}{_base36(choice, 2)}{_base36(index, 2)}"


def _base36(number: int, width: int) -> str:
    return np.base_repr(number % 36**width, 36).lower().rjust(width, "0")
