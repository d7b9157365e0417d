"""Between text and tokens: the folder's tokenizer, and the text of an answer as its tokens come."""

import inspect
import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from freerun.core import FinishReason
from freerun.engines.refused import Refused
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

    @cached_property
    def longest_token(self) -> int:
        """In characters, or bytes where it has more of these."""
        return max(map(len, self.load().get_vocab()))

    def encode(self, text: str, special: bool = True) -> list[int]:
        tokens: list[int] = self.load().encode(text, add_special_tokens=special)
        return tokens

    def decode(self, tokens: list[int]) -> str:
        text: str = self.load().decode(tokens)
        return text

    def readable(self, tokens: list[int]) -> str:
        """As a person reads it, without special tokens."""
        text: str = self.load().decode(tokens, skip_special_tokens=True)
        return text

    def render(self, messages: list[dict[str, Any]], how: dict[str, Any], told: dict[str, Any]) -> str:
        """A conversation through the model's chat template. `how` is for the tokenizer and `told` for the template."""
        tokenizer = self.load()
        if not tokenizer.chat_template:
            raise Refused(
                f"{os.path.basename(self._folder)} has no chat template, so it cannot chat: use /v1/completions, or "
                "add a chat_template to its tokenizer_config.json"
            )
        own = inspect.signature(tokenizer.apply_chat_template).parameters.keys() & told.keys()
        if own:
            raise Refused(f"chat_template_kwargs must not hold {min(own)}", "chat_template_kwargs")
        if "developer" not in str(tokenizer.chat_template):  # the newer word for it, which most templates do not know
            messages = [m | {"role": "system"} if m["role"] == "developer" else m for m in messages]
        try:
            text: str = tokenizer.apply_chat_template(messages, tokenize=False, **how, **told)
        except Exception as error:  # a template is the model author's program, run on the user's messages
            raise Refused(f"the model's chat template refuses these messages: {error}", "messages") from None
        return text


class AnswerText:
    """Turns an answer's tokens into text as they come.

    Half a character waits for its other half, and what may be the beginning of a stop string waits until it is clear.
    The stop string itself, unless `with_stop`, and the token that ended the answer are left out, as OpenAI does.
    """

    def __init__(
        self, decode: Callable[[list[int]], str], stop: tuple[str, ...], ends: frozenset[int], with_stop: bool = False
    ) -> None:
        self._decode = decode
        self._with_stop = with_stop
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
        found = [(at, at + len(stop)) for stop in self._stop if (at := text.find(stop)) >= 0]
        return text[: min(found)[self._with_stop]] if found else text

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
