"""Tiny models of many architectures, as transformers makes them: random weights, of which no two are alike."""

from pathlib import Path
from typing import Any

import torch

from freerun.models.borrowed import BorrowedDecoder, random_borrowed
from freerun.models.shape import shape_of

SMALL: dict[str, Any] = {
    "vocab_size": 48, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 0,
    "eos_token_id": 1,
}  # fmt: skip
"""Under the names that most configurations have; what one does not know is left out."""

_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
MORE: dict[str, dict[str, Any]] = {
    "hunyuan_v1_dense": {"head_dim": 8},
    "ministral": {"head_dim": 8, "sliding_window": 6},
    "nemotron": {"num_key_value_heads": 2},
    "granite": {"logits_scaling": 4.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2},
    "mistral": {"sliding_window": 6},
    "phi3": {"sliding_window": 6},
    "gpt2": {"n_positions": 64},
    "opt": {"word_embed_proj_dim": 32, "ffn_dim": 48},
    "falcon": {"head_dim": None},
    "qwen2_moe": {**_EXPERTS, "shared_expert_intermediate_size": 16},
    "qwen3_moe": _EXPERTS,
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "glm4_moe": {**_EXPERTS, "n_routed_experts": 4, "first_k_dense_replace": 1},
    "deepseek_v2": {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "q_lora_rank": 16,
                    "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "head_dim": 8,
                    "n_group": 1, "topk_group": 1, "num_key_value_heads": 4},
    "deepseek_v3": {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "q_lora_rank": 16,
                    "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "head_dim": 8,
                    "n_group": 1, "topk_group": 1, "num_key_value_heads": 4, "first_k_dense_replace": 1},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 1,
              "topk_group": 1, "n_shared_experts": 1},
    "gpt_oss": {"num_local_experts": 4, "sliding_window": 6},
}  # fmt: skip
"""What each architecture is given besides."""


def raw_config(family: str, **changes: Any) -> dict[str, Any]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = CONFIG_MAPPING[family]
    known = kind()
    given = {key: value for key, value in SMALL.items() if getattr(known, key, None) is not None}
    if getattr(known, "sliding_window", None):
        given["sliding_window"] = 6
    raw: dict[str, Any] = kind(**(given | MORE.get(family, {}) | changes)).to_dict()
    return {**raw, "model_type": family}


def random_decoder(family: str, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> BorrowedDecoder:
    """Its norms and biases are random, too."""
    decoder = random_borrowed(shape_of(raw_config(family, **changes), backend="transformers"), seed, dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=dtype) * 0.15)
    return decoder


def random_folder(family: str, folder: Path, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
    """As transformers writes it."""
    random_decoder(family, seed, dtype, **changes).model.save_pretrained(folder)
    return folder


def _known(*families: str) -> list[str]:
    """Older versions of transformers lack some."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return [family for family in families if family in CONFIG_MAPPING]


TRAINED = _known(
    *("llama", "mistral", "gemma", "gemma2", "gemma3_text", "phi", "phi3", "glm", "glm4", "olmo2", "olmo3", "granite"),
    *("cohere", "cohere2", "starcoder2", "stablelm", "smollm3", "nemotron", "gpt_neox", "gpt2", "opt", "deepseek_v3"),
    *("gpt_oss", "mixtral", "qwen3_moe", "olmoe"),
)
PACKED = _known(
    *TRAINED,
    *("qwen2", "qwen3", "olmo", "arcee", "apertus", "helium", "persimmon", "seed_oss", "hunyuan_v1_dense", "ernie4_5"),
    *("exaone4", "biogpt", "bitnet", "vaultgemma", "diffllama", "ministral", "ministral3", "jais2", "deepseek_v2"),
    *("glm4_moe", "dots1", "qwen2_moe", "granitemoe", "phimoe", "flex_olmo", "cwm"),
)
