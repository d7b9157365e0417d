"""Takes answers apart as they come: thoughts, text, calls of tools.

However an answer is cut into pieces, what the pieces say together is the same: what may be the beginning of a mark is
held until it is clear. Space around thoughts and calls is dropped. What looks like a call and cannot be read as one is
text; nothing else is lost.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from freerun.core import FinishReason
from freerun.engines.dialects.answer_format import AnswerFormat, hidden_tokens
from freerun.engines.dialects.base import ChatRequest, Json, Said, ToolCall
from freerun.engines.dialects.call_formats import Call, Unfinished
from freerun.engines.dialects.text import AnswerText, overlap
from freerun.engines.extras import Alternatives

Mint = Callable[[int], str]
"""The id of a call, by its number in the answer."""


class _At(Enum):
    START = auto()
    """Nothing but space has come, since the answer or since its thoughts ended."""
    THOUGHTS = auto()
    TEXT = auto()
    CALL = auto()


@dataclass(slots=True)
class _Words:
    """A text that comes in pieces, without space before its first word, nor, `held` until more words come, after its
    last."""

    drops_space: bool
    holds_space: bool
    held: str = ""

    def add(self, text: str) -> str:
        if self.drops_space:
            text = text.lstrip()
            self.drops_space = not text
        if not self.holds_space:
            return text
        text = self.held + text
        words = text.rstrip()
        self.held = text[len(words) :]
        return words


class AnswerParser:
    """One answer. `tools` are those offered: without any, nothing is a call. `begun` is what the prompt holds of the
    answer already, such as a call that must be made."""

    def __init__(
        self,
        format: AnswerFormat,
        tools: Sequence[Json],
        mint: Mint,
        is_thinking: bool = False,
        begun: str = "",
        only_one_call: bool = False,
    ) -> None:
        self._calls, self._thinking, self._mint = format.calls, format.thinking, mint
        self._schemas = {tool["function"]["name"]: tool["function"].get("parameters") for tool in tools}
        self._offered, self._only_one = bool(tools), only_one_call
        self._at = _At.THOUGHTS if is_thinking else _At.START
        self._thoughts = _Words(drops_space=True, holds_space=True)
        self._words = _Words(drops_space=False, holds_space=self._offered)
        self._may_think = not is_thinking and self._thinking is not None
        self._rest = ""
        """Not clear yet what it is."""
        self._searched = 0
        """How far the call in progress is known to hold no closing mark."""
        self._told = 0
        """How many calls."""
        self.add(begun)

    def add(self, text: str, finish: FinishReason | None = None) -> Said:
        """What this text makes certain; with a finish reason, all the rest."""
        said = Said(finish=finish)
        self._rest += text
        while self._step(said, finish is not None):
            pass
        if finish is not None and not self._told:
            said.content += self._words.held
        return said

    def _step(self, said: Said, is_last: bool) -> bool:
        """Whether there may be more to do."""
        if self._only_one and self._told:
            self._rest = ""
            return False
        if self._at is _At.START:
            return self._start(said, is_last)
        if self._at is _At.THOUGHTS:
            return self._think(said, is_last)
        return self._text(said, is_last) if self._at is _At.TEXT else self._call(said, is_last)

    def _start(self, said: Said, is_last: bool) -> bool:
        """Thoughts begin here or not at all, and so do calls without a mark."""
        text = self._rest.lstrip()
        opens = self._thinking.open if self._thinking and self._may_think else ""
        if opens and text.startswith(opens):
            self._rest, self._at, self._may_think = text[len(opens) :], _At.THOUGHTS, False
        elif not is_last and (not text or opens.startswith(text)):
            return False
        elif self._offered and self._calls.is_bare and text.startswith("{"):
            said.content += self._words.add(self._rest[: len(self._rest) - len(text)])
            self._rest, self._at, self._searched = text, _At.CALL, 0
        else:
            self._at = _At.TEXT
        return True

    def _think(self, said: Said, is_last: bool) -> bool:
        assert self._thinking
        thoughts, closes, rest = self._rest.partition(self._thinking.close)
        keep = 0 if closes or is_last else overlap(thoughts, (self._thinking.close,))
        said.reasoning += self._thoughts.add(thoughts[: len(thoughts) - keep])
        self._rest = rest if closes else thoughts[len(thoughts) - keep :]
        if closes:
            self._at, self._words.drops_space = _At.START, True
        return bool(closes)

    def _text(self, said: Said, is_last: bool) -> bool:
        at = self._rest.find(self._calls.open) if self._offered else -1
        watches = self._offered and at < 0 and not is_last
        end = at if at >= 0 else len(self._rest) - (overlap(self._rest, (self._calls.open,)) if watches else 0)
        said.content += self._words.add(self._rest[:end])
        self._rest = self._rest[end:]
        if at >= 0:
            self._at, self._searched = _At.CALL, len(self._calls.open)
        return at >= 0

    def _call(self, said: Said, is_last: bool) -> bool:
        """A call is told when it is whole. An answer's end closes it too: some models leave the mark out."""
        close = self._calls.close
        at = self._rest.find(close, self._searched) if close else -1
        if at < 0 and not is_last:
            self._searched = max(len(self._rest) - len(close) + 1, self._searched)
            return False
        try:
            calls = self._calls.read(self._calls.body(self._rest[: at if at >= 0 else None]), self._schemas)
        except Unfinished:
            if at >= 0:
                self._searched = at + len(close)
                return True
            calls = None
        if calls:
            self._tell(said, calls)
            self._rest = self._rest[at + len(close) :] if at >= 0 else ""
        else:
            mark = len(self._calls.open) if self._rest.startswith(self._calls.open) else 1
            said.content += self._words.add(self._rest[:mark])
            self._rest = self._rest[mark:]
        self._at = _At.TEXT
        return True

    def _tell(self, said: Said, calls: Sequence[Call]) -> None:
        for name, arguments in calls[:1] if self._only_one else calls:
            said.tool_calls.append(ToolCall(self._mint(self._told), name, arguments))
            self._told += 1
        self._words.held, self._words.drops_space = "", True


class AnswerReading:
    """How the answers of one model are read: its tokenizer (one of transformers'), and its format."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.format = AnswerFormat.of(tokenizer)
        self._hidden = hidden_tokens(tokenizer, self.format)
        thinking = self.format.thinking
        self._thought_ends: int | None = tokenizer.get_vocab().get(thinking.close) if thinking else None

    def is_thinking(self, prompt: str) -> bool:
        """Whether a prompt that ends with that text has begun the model's thoughts."""
        return self.format.thinking is not None and self.format.thinking.is_open(prompt)

    def opening(self, request: ChatRequest, is_thinking: bool) -> str:
        """What the prompt must end with, so that the request's `tool_choice` is kept to."""
        return self.format.opening(request.tool_choice, is_thinking)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text with the marks of thoughts and calls in it, and without other special tokens."""
        text: str = self._tokenizer.decode([token for token in tokens if token not in self._hidden])
        return text

    def decode_all(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(tokens))
        return text

    def reader(
        self,
        request: ChatRequest,
        mint: Mint,
        ends: frozenset[int],
        index: int = 0,
        is_thinking: bool = False,
        begun: str = "",
        shows_special: bool = False,
        shows_stop: bool = False,
    ) -> "AnswerReader":
        """For one answer. `ends` are the tokens that end one, and are not part of what it says."""
        only_one = not request.parallel_tool_calls
        parser = AnswerParser(self.format, request.offered_tools, mint, is_thinking, begun, only_one)
        decode = self.decode_all if shows_special else self.decode
        return AnswerReader(parser, AnswerText(decode, request.stop, ends, shows_stop), index)

    def reasoning_tokens(self, said: Said) -> int:
        """How many of a whole answer's tokens are thoughts, marks included."""
        tokens = said.tokens
        if not said.reasoning or self.format.thinking is None:
            return 0
        if self._thought_ends is not None and self._thought_ends in tokens:
            return list(tokens).index(self._thought_ends) + 1
        close = self.format.thinking.close
        return min(
            bisect_left(range(len(tokens)), True, key=lambda at: close in self.decode(tokens[: at + 1])) + 1,
            len(tokens),
        )


class AnswerReader:
    """One answer, from tokens to what it says."""

    def __init__(self, parser: AnswerParser, text: AnswerText, index: int) -> None:
        self._parser, self._text, self._index = parser, text, index

    def add(
        self,
        tokens: Sequence[int],
        logprobs: Sequence[float] = (),
        finish: FinishReason | None = None,
        alternatives: Sequence[Alternatives] = (),
    ) -> Said:
        said = self._parser.add(self._text.add(list(tokens), finish), finish)
        said.index, said.stopped_by = self._index, self._text.stopped_by
        said.tokens, said.logprobs, said.alternatives = tokens, logprobs, alternatives
        return said
