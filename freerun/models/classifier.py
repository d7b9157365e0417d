"""transformers' sequence classifiers, such as reward models: a conversation in, a logit for each label out.

A folder whose weights lack the classifier's head is refused: transformers would make one up. Rows are padded on the
right to the longest of their pass. Decoders read the last token that is not padding, so where a model names no padding
token it is one that none of the pass's rows has: what a row gets does not depend on its company.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification
from transformers.utils import logging

from freerun.core import ConfigError, DataError
from freerun.models.tokenizer import load_tokenizer

_POSITIONS = 1 << 20
"""How many positions a model has that does not say."""
_FEWEST = 256
"""If memory does not suffice for a pass of so many tokens, it will not for fewer."""


@dataclass(frozen=True)
class Encoded:
    tokens: list[int]
    types: list[int] | None = None
    """Which of two texts each token is of, for models that are told."""


class Classifier:
    def __init__(self, folder: Path, device: str, dtype: torch.dtype, pass_tokens: int) -> None:
        """At most so many tokens a pass, padding included; fewer where memory runs out."""
        self._folder, self._device, self._pass_tokens = folder, device, pass_tokens
        self.tokenizer = load_tokenizer(folder)
        self._model = _loaded(folder, dtype).to(device).eval().requires_grad_(False)
        self._model.config.use_cache = False
        self._text_config = self._model.config.get_text_config()

    @cached_property
    def longest(self) -> int:
        """Tokens that it can read."""
        found = getattr(self._text_config, "max_position_embeddings", None)
        return found if isinstance(found, int) and found > 0 else _POSITIONS

    def encode(self, messages: Sequence[dict[str, Any]]) -> Encoded:
        """By its own chat template; without one, all before the last message and that one are a pair of texts."""
        if self.tokenizer.chat_template:
            return self._checked(Encoded(self.tokenizer.encode(self._rendered(messages), add_special_tokens=False)))
        asked = "\n\n".join(_content(message) for message in messages[:-1])
        pair = self.tokenizer(asked, _content(messages[-1]))
        return self._checked(Encoded(list(pair["input_ids"]), pair.get("token_type_ids")))

    def _rendered(self, messages: Sequence[dict[str, Any]]) -> str:
        try:
            return str(self.tokenizer.apply_chat_template(list(messages), tokenize=False))
        except Exception as error:  # jinja's own, or what a template leads Python to
            said = " ".join(str(error).split())[:200] or type(error).__name__
            raise DataError(f"the chat template of {self._folder} refuses the conversation: {said}") from None

    def _checked(self, encoded: Encoded) -> Encoded:
        if len(encoded.tokens) > self.longest:
            raise DataError(
                f"the conversation has {len(encoded.tokens)} tokens, and {self._folder} reads {self.longest}"
            )
        if not encoded.tokens:
            raise DataError("the conversation is empty")
        return encoded

    @torch.inference_mode()
    def logits(self, rows: Sequence[Encoded]) -> list[list[float]]:
        """One a label, of each row."""
        found: list[list[float]] = [[] for _ in rows]
        order = sorted(range(len(rows)), key=lambda place: -len(rows[place].tokens))
        left = order
        while left:
            for places in _passes(left, [len(row.tokens) for row in rows], self._pass_tokens):
                try:
                    logits = self._pass([rows[place] for place in places])
                except torch.OutOfMemoryError:
                    self._shorten()
                    break
                for place, values in zip(places, logits.tolist(), strict=True):
                    found[place] = values
            left = [place for place in order if not found[place]]
        return found

    def _pass(self, rows: Sequence[Encoded]) -> Tensor:
        longest = len(rows[0].tokens)
        filler = self._filler(rows)

        def padded(values: Iterator[list[int]], with_: int) -> Tensor:
            return torch.tensor([one + [with_] * (longest - len(one)) for one in values], device=self._device)

        given = {"input_ids": padded((row.tokens for row in rows), filler)}
        given["attention_mask"] = padded(([1] * len(row.tokens) for row in rows), 0)
        if rows[0].types is not None:
            given["token_type_ids"] = padded((list(row.types or ()) for row in rows), 0)
        return self._model(**given).logits.float().cpu()  # type: ignore[no-any-return]

    def _filler(self, rows: Sequence[Encoded]) -> int:
        if self._named_filler is not None:
            return self._named_filler
        used = {token for row in rows for token in row.tokens}
        free = next(token for token in range(len(used) + 1) if token not in used)
        self._text_config.pad_token_id = self._model.config.pad_token_id = free
        return free

    @cached_property
    def _named_filler(self) -> int | None:
        """Asked for before one is made up."""
        found: int | None = self._text_config.pad_token_id
        return found

    def _shorten(self) -> None:
        torch.cuda.empty_cache()
        if self._pass_tokens <= _FEWEST:
            raise ConfigError(f"{self._folder}: the GPU's memory does not suffice for a pass of {_FEWEST} tokens")
        self._pass_tokens = max(self._pass_tokens // 2, _FEWEST)


def _passes(order: Sequence[int], lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Stretches of `order`, which goes from long to short, of at most that many tokens with their padding, or one."""
    stretch: list[int] = []
    for place in order:
        if stretch and (len(stretch) + 1) * lengths[stretch[0]] > most:
            yield stretch
            stretch = []
        stretch.append(place)
    if stretch:
        yield stretch


def _content(message: dict[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def _loaded(folder: Path, dtype: torch.dtype) -> Any:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        model, told = AutoModelForSequenceClassification.from_pretrained(
            folder, local_files_only=True, dtype=dtype, output_loading_info=True
        )
    except Exception as error:  # whatever a folder leads transformers to
        said = " ".join(str(error).split())[:160]
        raise ConfigError(f"transformers cannot load {folder} as a classifier: {said}") from None
    if missing := sorted(told["missing_keys"]):
        raise ConfigError(
            f"{folder} holds no tensor {missing[0]}, so it is no trained classifier: give a reward model, such as one "
            "whose config.json names a …ForSequenceClassification"
        )
    return model
