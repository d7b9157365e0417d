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
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # transformers and tokenizers raise whatever a damaged file leads them to
        said = in_one_line(error)[:200]
        raise ConfigError(
            f"model.path: the tokenizer of {folder} cannot be read ({said}): copy or download its files again"
        ) from None


def fingerprint(tokenizer: Any) -> str:
    """A digest of the tokens and their numbers; how a chat is rendered is not in it."""
    tokens = json.dumps(sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0])))
    return hashlib.blake2b(tokens.encode(), digest_size=8).hexdigest()
