"""What OpenAI's two routes give back: whole, or in chunks."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol

from freerun.core import FinishReason
from freerun.engines.extras import Alternatives

Json = dict[str, Any]
Word = Callable[[int], str]
"""What a token says."""


@dataclass(slots=True)
class TextPart:
    """What an answer says: all of it, or what one chunk adds."""

    index: int
    text: str
    tokens: list[int]
    logprobs: list[float]
    finish: FinishReason | None
    alternatives: list[Alternatives] = field(default_factory=list)


class ReplyFormat(Protocol):
    """One of the two routes' shapes."""

    prefix: str
    whole: str
    chunk: str

    def opening(self, index: int) -> Json | None:
        """What a stream says of an answer before its first token, if anything."""
        ...

    def logprobs(self, part: TextPart, word: Word, offset: int) -> tuple[Json, int]:
        """`offset` is how many characters of the answer come before; with how many come before what is next."""
        ...

    def choice(self, part: TextPart) -> Json: ...

    def delta(self, part: TextPart) -> Json: ...


class CompletionFormat:
    prefix = "cmpl"
    whole = chunk = "text_completion"

    def opening(self, index: int) -> Json | None:
        return None

    def logprobs(self, part: TextPart, word: Word, offset: int) -> tuple[Json, int]:
        """The old format: lists side by side. Among the alternatives is the token itself, as with OpenAI."""
        words = [word(token) for token in part.tokens]
        *offsets, end = accumulate(map(len, words), initial=offset)
        sampled = zip(part.tokens, part.logprobs, strict=True)
        top = [
            {word(token): logprob for token, logprob in [*others, itself]}
            for others, itself in zip(part.alternatives, sampled, strict=False)
        ]
        lists = {"tokens": words, "token_logprobs": part.logprobs, "top_logprobs": top or None, "text_offset": offsets}
        return lists, end

    def choice(self, part: TextPart) -> Json:
        return {"index": part.index, "text": part.text, "finish_reason": part.finish}

    delta = choice


class ChatFormat:
    prefix = "chatcmpl"
    whole = "chat.completion"
    chunk = "chat.completion.chunk"

    def opening(self, index: int) -> Json | None:
        return {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}

    def logprobs(self, part: TextPart, word: Word, offset: int) -> tuple[Json, int]:
        def entry(token: int, logprob: float) -> Json:
            return {"token": word(token), "logprob": logprob, "bytes": _bytes(word(token))}

        sampled = [entry(*pair) for pair in zip(part.tokens, part.logprobs, strict=True)]
        top = [[entry(*pair) for pair in others] for others in part.alternatives] or [[] for _ in sampled]
        content = [one | {"top_logprobs": others} for one, others in zip(sampled, top, strict=True)]
        return {"content": content, "refusal": None}, offset

    def choice(self, part: TextPart) -> Json:
        message = {"role": "assistant", "content": part.text, "refusal": None}
        return {"index": part.index, "message": message, "finish_reason": part.finish}

    def delta(self, part: TextPart) -> Json:
        delta = {"content": part.text} if part.text else {}
        return {"index": part.index, "delta": delta, "finish_reason": part.finish}


def _bytes(word: str) -> list[int] | None:
    """None for a token that is no whole character: its bytes are not to be had from its text."""
    return None if "\ufffd" in word else list(word.encode())


@dataclass(slots=True)
class Reply:
    """One request's reply: whole, or a stream of chunks that share its id."""

    id: str
    model: str
    created: int
    shape: ReplyFormat
    prompts: list[list[int]]
    n: int
    with_logprobs: bool
    with_token_ids: bool
    word: Word
    completion_tokens: int = 0
    _offsets: Counter[int] = field(default_factory=Counter)

    def choice(self, part: TextPart, is_whole: bool, is_first: bool = True) -> Json:
        """One answer, or what a chunk adds to one; the prompt's ids go with the first chunk."""
        self.completion_tokens += len(part.tokens)
        choice = self.shape.choice(part) if is_whole else self.shape.delta(part)
        choice["logprobs"] = self._logprobs(part) if self.with_logprobs else None
        if self.with_token_ids:
            choice["token_ids"] = part.tokens
            choice["prompt_token_ids"] = self.prompts[part.index // self.n] if is_first else None
        return choice

    def _logprobs(self, part: TextPart) -> Json:
        logprobs, self._offsets[part.index] = self.shape.logprobs(part, self.word, self._offsets[part.index])
        return logprobs

    def whole(self, choices: list[Json]) -> Json:
        return self._envelope(self.shape.whole, choices) | {"usage": self.usage()}

    def chunk(self, *choices: Json) -> Json:
        return self._envelope(self.shape.chunk, list(choices))

    def _envelope(self, kind: str, choices: list[Json]) -> Json:
        """vLLM says a chat's prompt ids here too, beside the choices."""
        envelope = {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}
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
