"""A model small enough for a laptop, made from nothing: random weights and a tokenizer of characters."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from freerun.models.checkpoint import save_decoder
from freerun.models.own import OwnDecoder, initialise
from freerun.models.shape import shape_of

PAD, EOS = "<pad>", "<eos>"


def make_model(
    folder: Path,
    pieces: Iterable[str],
    seed: int,
    hidden: int = 64,
    layers: int = 2,
    chat_template: str | None = None,
    marks: Iterable[str] = (),
    **changes: Any,
) -> None:
    """A Qwen3-shaped decoder over those characters or longer pieces of text, as an ordinary Hugging Face folder.
    `marks` are special tokens: those that tell in a chat who speaks."""
    marks = tuple(marks)
    vocabulary = {token: index for index, token in enumerate([PAD, EOS, *marks, *pieces])}
    heads = max(hidden // 16, 1)
    raw = {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": len(vocabulary),
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": 16,
        "intermediate_size": 11 * hidden // 4,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "rope_theta": 10_000.0,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 8192,
        "eos_token_id": vocabulary[EOS],
        "pad_token_id": vocabulary[PAD],
    }
    decoder = OwnDecoder(shape_of(raw | changes))
    initialise(decoder, seed)
    save_decoder(decoder, folder)
    write_tokenizer(folder, vocabulary, chat_template, marks)


def write_tokenizer(
    folder: Path, vocabulary: dict[str, int], chat_template: str | None = None, marks: Iterable[str] = ()
) -> None:
    """A tokenizer for which every character or piece of the vocabulary is a token."""
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(vocabulary, (PAD, EOS, *marks))))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS, "pad_token": PAD}
    if chat_template is not None:
        settings["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _tokenizer(vocabulary: dict[str, int], marks: tuple[str, ...]) -> dict[str, Any]:
    """In the `tokenizers` library's own format. Where several pieces fit, the longest is taken."""
    longer = sorted((piece for piece in vocabulary if len(piece) > 1 and piece not in marks), key=len, reverse=True)
    pattern = "|".join([*map(re.escape, longer), "."])
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": vocabulary[token], "content": token, **special} for token in marks],
        "normalizer": None,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": PAD},
    }
