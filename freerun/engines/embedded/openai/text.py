"""Between text and tokens: the folder's tokenizer, and the text of an answer as its tokens come."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from freerun.core import FinishReason
from freerun.engines.embedded.replies import Refused
from freerun.models.tokenizer import load_tokenizer

_UNFINISHED = "\ufffd"
"""What decoders write for bytes that are no whole character (yet)."""
_MOST_HELD = 32
"""Tokens held back for a character to become whole. None is that long: beyond it, they are the model's nonsense."""


class Tokenizer:
    """A folder's tokenizer, loaded when it is first used: most engines of a run never do."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loaded: Any = None

    def load(self) -> Any:
        if self._loaded is None:
            self._loaded = load_tokenizer(self._folder)
        return self._loaded

    def encode(self, text: str) -> list[int]:
        tokens: list[int] = self.load().encode(text, add_special_tokens=True)
        return tokens

    def decode(self, tokens: list[int]) -> str:
        text: str = self.load().decode(tokens)
        return text

    def readable(self, tokens: list[int]) -> str:
        """As a person reads it, without special tokens."""
        text: str = self.load().decode(tokens, skip_special_tokens=True)
        return text

    def render(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, extra: dict[str, Any]) -> Any:
        """A conversation through the model's chat template, ready for the next answer: its tokens."""
        tokenizer = self.load()
        if not tokenizer.chat_template:
            raise Refused(
                f"{os.path.basename(self._folder)} has no chat template, so it cannot chat: use /v1/completions, or "
                "add a chat_template to its tokenizer_config.json"
            )
        try:
            text = tokenizer.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=True, **extra
            )
        except Exception as error:  # a template is the model author's program, run on the user's messages
            raise Refused(f"the model's chat template refuses these messages: {error}", "messages") from None
        return tokenizer.encode(text, add_special_tokens=False)  # the template writes its own


class AnswerText:
    """Turns an answer's tokens into text as they come.

    Half a character waits for its other half, and what may be the beginning of a stop string waits until it is clear.
    The stop string itself, and the token that ended the answer, are left out, as OpenAI does.
    """

    def __init__(self, decode: Callable[[list[int]], str], stop: tuple[str, ...], ends: frozenset[int]) -> None:
        self._decode = decode
        self._stop = stop
        self._ends = ends
        self._tokens: list[int] = []
        self._context = 0
        """Decoding starts at this token, some before the new ones: what a token says depends on those before it."""
        self._read = 0
        """Tokens whose text is out, or held."""
        self._held = ""

    def add(self, tokens: list[int], finish: FinishReason | None) -> str:
        """The text that these tokens make certain; with a finish reason, all the rest."""
        ended_by_token = finish is FinishReason.STOP and tokens and tokens[-1] in self._ends
        self._tokens.extend(tokens[:-1] if ended_by_token else tokens)
        text = self._held + self._decoded(is_last=finish is not None)
        keep = self._may_stop(text) if finish is None else 0
        self._held = text[len(text) - keep :]
        if finish is not FinishReason.STOP:
            return text[: len(text) - keep]
        return text[: min((at for stop in self._stop if (at := text.find(stop)) >= 0), default=len(text))]

    def _decoded(self, is_last: bool) -> str:
        if self._read == len(self._tokens):
            return ""
        text = self._decode(self._tokens[self._context :])
        if text.endswith(_UNFINISHED) and not is_last and len(self._tokens) - self._read < _MOST_HELD:
            return ""
        new = text[len(self._decode(self._tokens[self._context : self._read])) :]
        if new:
            self._context = self._read
        self._read = len(self._tokens)
        return new

    def _may_stop(self, text: str) -> int:
        """How many of the last characters may be the beginning of a stop string."""
        longest = 0
        for stop in self._stop:
            lengths = range(min(len(stop), len(text)), longest, -1)
            longest = next((length for length in lengths if text.endswith(stop[:length])), longest)
        return longest
