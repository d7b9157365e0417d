"""Tiny models and a character tokenizer, made on the spot."""

import json
from pathlib import Path
from typing import Any

import torch

from freerun.models.checkpoint import save_decoder
from freerun.models.decoder import Decoder, initialise
from freerun.models.shape import shape_of

TINY: dict[str, Any] = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 48, "hidden_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48,
    "tie_word_embeddings": True, "rope_theta": 10_000.0, "rms_norm_eps": 1e-6, "max_position_embeddings": 512,
    "eos_token_id": 1, "bos_token_id": 0, "hidden_act": "silu",
}  # fmt: skip


def tiny_decoder(seed: int = 0, std: float = 0.25, dtype: torch.dtype = torch.float32, **changes: Any) -> Decoder:
    """Random weights large enough that its distributions are far from uniform."""
    decoder = Decoder(shape_of(TINY | changes))
    initialise(decoder, seed, std)
    return decoder.to(dtype)


def tiny_folder(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """A model folder with a character tokenizer: token 2.. are a, b, c, …"""
    save_decoder(tiny_decoder(seed, **changes), folder)
    vocab = {"<pad>": 0, "<eos>": 1} | {chr(c): i for i, c in enumerate(range(ord("a"), ord("z") + 1), start=2)}
    vocab |= {c: len(vocab) + i for i, c in enumerate(">+=0123456789 .?")}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [
            {"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
             "special": True} for t, i in list(vocab.items())[:2]
        ],
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False},
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<pad>"},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>", "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
