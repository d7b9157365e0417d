"""The folder's tokenizer, between text and tokens."""

import inspect
import os
from functools import cached_property
from pathlib import Path
from typing import Any

from freerun.engines.refused import Refused
from freerun.models.tokenizer import load_tokenizer


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
