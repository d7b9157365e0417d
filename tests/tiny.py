"""Tiny models and a character tokenizer, made on the spot."""

from pathlib import Path
from typing import Any

import torch

from freerun.engines.config import EngineConfig
from freerun.machine.device import choose_device
from freerun.machine.machines import LOOPBACK
from freerun.models.checkpoint import save_decoder
from freerun.models.own import OwnDecoder, initialise
from freerun.models.shape import shape_of
from freerun.models.tiny import EOS, PAD, write_tokenizer
from freerun.run.child import EngineSettings

TINY: dict[str, Any] = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 48, "hidden_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48,
    "tie_word_embeddings": True, "rope_theta": 10_000.0, "rms_norm_eps": 1e-6, "max_position_embeddings": 512,
    "eos_token_id": 1, "bos_token_id": 0, "hidden_act": "silu",
}  # fmt: skip


MIXTURES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True,
                  "mlp_only_layers": [1], "num_hidden_layers": 3},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 24},
    "olmoe": {"num_experts": 5, "num_experts_per_tok": 3, "intermediate_size": 24, "tie_word_embeddings": False},
}  # fmt: skip
"""What makes a mixture of experts of `TINY`; the first has a layer without experts."""


def mixture(family: str) -> dict[str, Any]:
    architecture = {"qwen3_moe": "Qwen3Moe", "mixtral": "Mixtral", "olmoe": "Olmoe"}[family]
    return {"model_type": family, "architectures": [f"{architecture}ForCausalLM"], **MIXTURES[family]}


def tiny_decoder(seed: int = 0, std: float = 0.25, dtype: torch.dtype = torch.float32, **changes: Any) -> OwnDecoder:
    """Random weights large enough that its distributions are far from uniform."""
    decoder = OwnDecoder(shape_of(TINY | changes))
    initialise(decoder, seed, std)
    return decoder.to(dtype)


def tiny_folder(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """A model folder with a character tokenizer: token 2.. are a, b, c, …"""
    save_decoder(tiny_decoder(seed, **changes), folder)
    characters = "abcdefghijklmnopqrstuvwxyz>+=0123456789 .?"
    write_tokenizer(folder, {token: index for index, token in enumerate([PAD, EOS, *characters])})
    return folder


def engine_settings(model: Path, **config: Any) -> EngineSettings:
    """What an engine's process is started with."""
    return EngineSettings(str(model), EngineConfig.model_validate(config).on(choose_device()).plain(), LOOPBACK, "")
