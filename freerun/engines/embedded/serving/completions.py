"""OpenAI's old completions: a prompt in, text out, whole or in chunks."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from freerun.core import FinishReason
from freerun.engines.dialects.base import Json, Word
from freerun.engines.dialects.bodies import CompletionsBody, StreamOptions
from freerun.engines.dialects.events import DONE, event
from freerun.engines.dialects.text import AnswerText
from freerun.engines.embedded.serving.tokenizer import Tokenizer
from freerun.engines.extras import Alternatives
from freerun.engines.server.pending import AnswerPart, AnswerRequest, PendingAnswers


class CompletionBody(CompletionsBody, kw_only=True):
    prompt: str | list[Any]
    """Text, texts, token ids, or lists of token ids."""
    logprobs: int | None = None
    """How many alternatives come with every token; with 0 its own log-probability alone."""
    echo: bool = False
    best_of: int | None = None
    add_special_tokens: bool = True

    def wants_logprobs(self) -> bool:
        return self.logprobs is not None

    def alternatives(self) -> int:
        return self.logprobs or 0

    def wrong(self) -> tuple[str, str] | None:
        if self.best_of not in (None, self.n):
            return "best_of", "must be n: as many answers come back as are made"
        if self.echo and self.wants_logprobs():
            return "echo", "does not go with logprobs: those of a prompt are not computed"
        return super().wrong()


@dataclass(slots=True)
class TextPart:
    """What an answer says: all of it, or what one chunk adds."""

    index: int
    text: str
    tokens: list[int]
    logprobs: list[float]
    finish: FinishReason | None
    alternatives: list[Alternatives] = field(default_factory=list)


class Answers:
    """The texts of a request's answers, numbered over all its prompts."""

    def __init__(
        self, body: CompletionBody, asks: list[AnswerRequest], tokenizer: Tokenizer, eos_token_ids: frozenset[int]
    ) -> None:
        decode = tokenizer.readable if body.skip_special_tokens else tokenizer.decode
        how = body.stops(), eos_token_ids | set(body.stop_token_ids), body.include_stop_str_in_output
        self._first = {ask.id: number * body.n for number, ask in enumerate(asks)}
        count = len(asks) * body.n
        self._texts = [AnswerText(decode, *how) for _ in range(count)]
        self._echoes: dict[int, str] = {}
        """What a stream begins with, before an answer's first words."""
        if body.echo:
            prompts = [decode(ask.prompt) for ask in asks]
            self._echoes = {index: prompts[index // body.n] for index in range(count)}

    def part(self, piece: AnswerPart) -> TextPart:
        index = self._first[piece.id] + piece.index
        text = self._echoes.pop(index, "") + self._texts[index].add(piece.tokens, piece.finish)
        return TextPart(index, text, piece.tokens, piece.logprobs, piece.finish, piece.alternatives)


@dataclass(slots=True)
class Reply:
    """One request's reply: whole, or a stream of chunks that share its id."""

    id: str
    model: str
    created: int
    prompts: list[list[int]]
    n: int
    with_logprobs: bool
    with_token_ids: bool
    word: Word
    completion_tokens: int = 0
    _offsets: Counter[int] = field(default_factory=Counter)

    def choice(self, part: TextPart, is_first: bool = True) -> Json:
        """One answer, or what a chunk adds to one; the prompt's ids go with the first chunk."""
        self.completion_tokens += len(part.tokens)
        choice: Json = {"index": part.index, "text": part.text, "finish_reason": part.finish}
        choice["logprobs"] = self._logprobs(part) if self.with_logprobs else None
        if self.with_token_ids:
            choice["token_ids"] = part.tokens
            choice["prompt_token_ids"] = self.prompts[part.index // self.n] if is_first else None
        return choice

    def _logprobs(self, part: TextPart) -> Json:
        """The old format: lists side by side. Among the alternatives is the token itself, as with OpenAI."""
        words = [self.word(token) for token in part.tokens]
        *offsets, self._offsets[part.index] = accumulate(map(len, words), initial=self._offsets[part.index])
        sampled = zip(part.tokens, part.logprobs, strict=True)
        top = [
            {self.word(token): logprob for token, logprob in [*others, itself]}
            for others, itself in zip(part.alternatives, sampled, strict=False)
        ]
        return {"tokens": words, "token_logprobs": part.logprobs, "top_logprobs": top or None, "text_offset": offsets}

    def whole(self, choices: list[Json]) -> Json:
        return self.chunk(*choices) | {"usage": self.usage()}

    def chunk(self, *choices: Json) -> Json:
        """vLLM says the prompt's ids here too, beside the choices."""
        head = {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}
        envelope = head | {"choices": list(choices)}
        if self.with_token_ids and len(self.prompts) == 1 and any(c.get("prompt_token_ids") for c in choices):
            envelope["prompt_token_ids"] = self.prompts[0]
        return envelope

    def usage(self) -> Json:
        given = sum(map(len, self.prompts))
        return {
            "prompt_tokens": given,
            "completion_tokens": self.completion_tokens,
            "total_tokens": given + self.completion_tokens,
        }


async def whole_of(reply: Reply, answers: Answers, asked: PendingAnswers) -> Json:
    choices = [reply.choice(answers.part(piece)) async for piece in asked]
    return reply.whole(sorted(choices, key=lambda choice: int(choice["index"])))


async def stream_of(
    reply: Reply, answers: Answers, asked: PendingAnswers, options: StreamOptions
) -> AsyncIterator[bytes]:
    def chunk(choice: Json) -> bytes:
        if options.include_usage:
            return event(reply.chunk(choice) | {"usage": reply.usage() if options.continuous_usage_stats else None})
        return event(reply.chunk(choice))

    begun: set[int] = set()
    async for piece in asked:
        await asyncio.sleep(0)  # with many pieces there, nothing else waits: no news of the client's end would come
        part = answers.part(piece)
        if part.text or part.finish or reply.with_logprobs or reply.with_token_ids:
            yield chunk(reply.choice(part, is_first=part.index not in begun))
            begun.add(part.index)
        else:
            reply.completion_tokens += len(part.tokens)  # held back: half a character, or of a stop string
    if options.include_usage:
        yield event(reply.chunk() | {"usage": reply.usage()})
    yield DONE
