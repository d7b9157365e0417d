"""The tokenizer of a model folder, through transformers, which is imported only when one is needed: it is slow to."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from freerun.core import ConfigError
from freerun.core.traces import in_one_line


def has_tokenizer(folder: Path) -> bool:
    return (folder / "tokenizer.json").is_file() or (folder / "tokenizer_config.json").is_file()


def load_tokenizer(folder: Path) -> Any:
    """A transformers tokenizer from local files alone."""
    if not has_tokenizer(folder):
        raise ConfigError(f"model.path: {folder} has no tokenizer.json; copy the model's tokenizer files there")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        return _class_for(folder).from_pretrained(folder, local_files_only=True)
    except Exception as error:  # transformers and tokenizers raise whatever a damaged file leads them to
        said = in_one_line(error)[:200]
        raise ConfigError(
            f"model.path: the tokenizer of {folder} cannot be read ({said}): copy or download its files again"
        ) from None


def _class_for(folder: Path) -> Any:
    """What finds the class for a folder imports torch, which takes a second and a half. Where the folder itself names
    the plain class, as Llama 3's do, there is nothing to find."""
    if _named_class(folder) == "PreTrainedTokenizerFast" and (folder / "tokenizer.json").is_file():
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast
    from transformers import AutoTokenizer

    return AutoTokenizer


def _named_class(folder: Path) -> Any:
    try:
        settings = json.loads((folder / "tokenizer_config.json").read_bytes())
    except (OSError, ValueError):
        return None  # whoever reads the folder says what is wrong with it
    return settings.get("tokenizer_class") if isinstance(settings, dict) and "auto_map" not in settings else None


def refuse_of_another_model(tokenizer: Any, folder: Path, vocab_size: int) -> None:
    """One that writes tokens which the model does not have. Tokens that were added to it may be too many: models are
    published with such that are never written."""
    known = tokenizer.get_vocab()
    highest = max((known[token] for token in known.keys() - tokenizer.get_added_vocab().keys()), default=0)
    if highest >= vocab_size:
        raise ConfigError(
            f"model.path: the tokenizer in {folder} has tokens up to number {highest}, and the model {vocab_size} by "
            "its config.json: they are of two models; copy the tokenizer's files again"
        )


def fingerprint(tokenizer: Any) -> str:
    """A digest of the tokens and their numbers; how a chat is rendered is not in it."""
    tokens = json.dumps(sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0])))
    return hashlib.blake2b(tokens.encode(), digest_size=8).hexdigest()
