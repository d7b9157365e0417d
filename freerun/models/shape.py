"""The shape of a decoder, read from and written as a Hugging Face `config.json`.

Our own code computes Llama, SmolLM2 (which is Llama), Qwen2 and Qwen3, and the mixtures of experts Qwen3-MoE, Mixtral
and OLMoE, where nothing in their configuration asks for more; for all else there is transformers' (`borrowed.py`).
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from freerun.core import ConfigError

MIXTURES = ("qwen3_moe", "mixtral", "olmoe")
FAMILIES = ("llama", "qwen2", "qwen3", *MIXTURES)
_NORM_EPS = {"mixtral": 1e-5, "olmoe": 1e-5}
_ROPE_THETA = {"mixtral": 1e6}
_EXPERT_FFN = {"qwen3_moe": "moe_intermediate_size"}
"""What a family means where its configuration says nothing, and which key has the width of an expert."""
Backend = Literal["auto", "own", "transformers", "remote"]
"""Whose code computes a model. `remote`: as `auto`, and where nobody else has code for it, that of its folder."""


@dataclass(slots=True, frozen=True)
class Experts:
    """The feed-forward networks that a token may go through, in each layer that has such."""

    count: int
    per_token: int
    """How many of them a token goes through."""
    ffn: int
    """The width of each."""
    layers: tuple[int, ...]
    """Those that have experts; the others have one network for all tokens."""
    normed: bool
    """Whether the weights of a token's experts add up to 1."""


@dataclass(slots=True, frozen=True)
class Shape:
    family: str
    vocab_size: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    tied: bool
    """The output head is the embedding."""
    rope_theta: float = 10_000.0
    rope_scaling: dict[str, Any] = field(default_factory=dict)
    norm_eps: float = 1e-6
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    max_positions: int = 4096
    eos_token_ids: tuple[int, ...] = ()
    raw: dict[str, Any] = field(default_factory=dict)
    """The whole `config.json`, so that saving gives back what loading read."""
    backend: Literal["own", "transformers"] = "own"
    """Whose code computes it."""
    remote: str | None = None
    """The folder whose own code computes it, by way of transformers."""
    counted: int | None = None
    """Numbers in the files of its weights, where they were counted."""
    experts: Experts | None = None

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normed, head by head."""
        return self.family in ("qwen3", "qwen3_moe")

    @property
    def wide_qk_norm(self) -> bool:
        """Whether they are normed over all heads together."""
        return self.family == "olmoe"

    @property
    def num_parameters(self) -> int:
        return self._parameters(self.experts.count if self.experts else 0) if self.counted is None else self.counted

    @property
    def active_parameters(self) -> int:
        """Those that compute with one token."""
        if self.experts is None:
            return self.num_parameters
        return self._parameters(self.experts.per_token)

    @property
    def token_ffn(self) -> int:
        """The widest that a token gets inside a layer: that of its experts together."""
        return self.experts.per_token * self.experts.ffn if self.experts else self.ffn

    def _parameters(self, experts: int) -> int:
        """With so many experts a layer."""
        heads = (2 * self.heads + 2 * self.kv_heads) * self.head_dim
        mixtures = len(self.experts.layers) if self.experts else 0
        inside = self.layers * self.hidden * heads + (self.layers - mixtures) * 3 * self.hidden * self.ffn
        if self.experts:
            inside += mixtures * self.hidden * (3 * experts * self.experts.ffn + self.experts.count)
        return inside + (1 if self.tied else 2) * self.vocab_size * self.hidden


QUANTISED_GROUP = 64
"""Numbers that share a scale in weights of fewer bits, where their rows can be cut into so many."""


@dataclass(slots=True, frozen=True)
class AdapterShape:
    """How large a low-rank adapter on all linear layers is (`adapter.py`), and the numbers below it."""

    rank: int
    alpha: float
    bits: int = 16
    """Bits of a number in the layers that it is on; from 16 on they are of the type that is computed in."""

    def base_bytes(self, shape: Shape, size: int) -> int:
        """The weights below it, in numbers of `size` bytes where they are not of fewer bits."""
        if self.bits >= 16:
            return shape.num_parameters * size
        inside = sum(outs * ins for outs, ins in _adapted(shape))
        return (shape.num_parameters - inside) * size + int(inside * (self.bits / 8 + 4 / QUANTISED_GROUP))

    def widened_bytes(self, shape: Shape, size: int) -> int:
        """The widest matrix of fewer bits, while it is multiplied with."""
        return max(outs * ins for outs, ins in _adapted(shape)) * size if self.bits < 16 else 0

    def num_parameters(self, shape: Shape) -> int:
        """Our fused layers have one A each."""
        return self.rank * sum(outs + ins for outs, ins in _adapted(shape))


def fp8_bytes(shape: Shape, size: int) -> int:
    """A model's weights where its layers' large matrices are of 8 bits (`fp8.py`), other numbers of `size` bytes."""
    qkv = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    narrow = shape.layers * (qkv + 3 * shape.ffn) * shape.hidden
    scales = shape.layers * (qkv + 2 * shape.ffn + shape.hidden)
    return (shape.num_parameters - narrow) * size + narrow + 4 * scales


def refuse_fp8(shape: Shape) -> None:
    """Those models whose layers cannot be of 8 bits."""
    if shape.backend == "transformers":
        raise ConfigError("engine.weights=fp8 works with Freerun's own code for a model alone: leave it at same")
    if shape.experts:
        raise ConfigError("engine.weights=fp8 does not know mixtures of experts: leave it at same")


def _adapted(shape: Shape) -> Iterator[tuple[int, int]]:
    """Outputs and inputs of every linear layer that an adapter is on: not routers and experts."""
    heads, hidden = shape.heads * shape.head_dim, shape.hidden
    for layer in range(shape.layers):
        yield heads + 2 * shape.kv_heads * shape.head_dim, hidden
        yield hidden, heads
        if not (shape.experts and layer in shape.experts.layers):
            yield 2 * shape.ffn, hidden
            yield hidden, shape.ffn


def read_shape(folder: Path, backend: Backend = "auto") -> Shape:
    path = folder / "config.json"
    if not folder.is_dir():
        raise ConfigError(
            f"model.path: there is no folder {folder}; give one with config.json and safetensors, or ORG/NAME of the "
            "Hugging Face hub"
        )
    if not path.is_file():
        refuse_adapter_alone(folder)
        raise ConfigError(
            f"model.path: {folder} has no config.json{other_formats(folder)}: give a Hugging Face model folder"
        )
    generation = folder / "generation_config.json"
    raw, more = _read_object(path), _read_object(generation) if generation.is_file() else {}
    try:
        shape = shape_of(raw, more, backend, folder)
    except ConfigError as error:
        raise ConfigError(f"model.path: {path}: {error}") from None
    return shape if shape.backend == "own" else replace(shape, counted=_counted(folder))


def refuse_adapter_alone(folder: Path) -> None:
    """A folder without a model's weights may have an adapter's."""
    if (adapter := folder / "adapter_config.json").is_file():
        base = _read_object(adapter).get("base_model_name_or_path") or "its base model"
        raise ConfigError(
            f"model.path: {folder} holds an adapter alone: merge it into {base} first, by peft's merge_and_unload, "
            "and give the folder that this saves"
        )


def other_formats(folder: Path) -> str:
    """A word on weights that are there in another format."""
    others = sorted(file.name for file in folder.glob("*") if file.suffix in (".bin", ".pt", ".pth", ".gguf"))
    return f" (it has {others[0]})" if others else ""


def _counted(folder: Path) -> int | None:
    from freerun.models.weight_files import count_numbers, shard_names  # which knows shapes

    return count_numbers(folder) if shard_names(folder) else None


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError, OSError) as error:
        raise ConfigError(
            f"model.path: {path} is not JSON ({' '.join(str(error).split())[:80]}): copy or download it again"
        ) from None
    if not isinstance(content, dict):
        raise ConfigError(f"model.path: {path} holds a {type(content).__name__}, not keys and values: copy it again")
    return content


def shape_of(
    raw: dict[str, Any],
    generation: dict[str, Any] | None = None,
    backend: Backend = "auto",
    folder: Path | None = None,
) -> Shape:
    """The shape that a `config.json` describes, in the writing of transformers 4 or 5. `generation_config.json` may
    know more end tokens, or be the only one to."""
    if quantised := [key for key in ("quantization_config", "compression_config") if raw.get(key)]:
        raise ConfigError(f"{quantised[0]} is not supported; give the model as it was before quantisation")
    ends = tuple(dict.fromkeys([*_end_tokens(raw), *_end_tokens(generation or {})]))
    lacking = _what_own_code_lacks(raw)
    if backend == "own" and lacking:
        raise ConfigError(f"{lacking} is not known to Freerun's own code: leave model.backend=auto")
    if backend == "transformers" or (lacking and backend != "own"):
        return _borrowed_shape(raw, ends, str(folder) if folder and backend == "remote" else None)
    return _own_shape(raw, ends)


def _what_own_code_lacks(raw: dict[str, Any]) -> str | None:
    """What a configuration asks for that our code does not compute."""
    if (family := raw.get("model_type", "")) not in FAMILIES:
        return f"model_type {family!r}"
    if raw.get("hidden_act", "silu") != "silu":
        return f"hidden_act {raw['hidden_act']!r}"
    if raw.get("use_sliding_window"):
        return "use_sliding_window"
    if family == "mixtral" and raw.get("sliding_window"):
        return "sliding_window"
    if family == "olmoe" and raw.get("clip_qkv"):
        return "clip_qkv"
    kind = rope_type(_rope(raw))
    return None if kind in ("default", "linear", "llama3", "yarn") else f"rope scaling {kind!r}"


def _rope(raw: dict[str, Any]) -> dict[str, Any]:
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise ConfigError("rope_scaling must be keys and values")
    return dict(rope)


def _borrowed_shape(raw: dict[str, Any], ends: tuple[int, ...], folder: str | None) -> Shape:
    """By transformers' own class for it, which knows every default; by the folder's, where that is told and
    transformers has none."""
    from freerun.models.borrowed_shape import borrowed_sizes, is_known  # transformers takes a second

    remote = folder if raw.get("auto_map") and not is_known(raw) else None
    sizes = borrowed_sizes(raw, remote)
    return Shape(family=raw["model_type"], eos_token_ids=ends, raw=raw, backend="transformers", remote=remote, **sizes)


def _own_shape(raw: dict[str, Any], ends: tuple[int, ...]) -> Shape:
    family, rope = raw["model_type"], _rope(raw)
    theta = rope.pop("rope_theta", None) or raw.get("rope_theta") or _ROPE_THETA.get(family, 10_000.0)
    heads = _size(raw, "num_attention_heads")
    bias = bool(raw.get("attention_bias", False))
    return Shape(
        family=family,
        vocab_size=_size(raw, "vocab_size"),
        hidden=_size(raw, "hidden_size"),
        layers=_size(raw, "num_hidden_layers"),
        heads=heads,
        kv_heads=_size(raw, "num_key_value_heads", heads),
        head_dim=_size(raw, "head_dim", _size(raw, "hidden_size") // heads),
        ffn=_size(raw, "intermediate_size"),
        tied=bool(raw.get("tie_word_embeddings", False)),
        rope_theta=_number(theta, "rope_theta"),
        rope_scaling={} if rope_type(rope) == "default" else rope,
        norm_eps=_number(raw.get("rms_norm_eps", _NORM_EPS.get(family, 1e-6)), "rms_norm_eps"),
        qkv_bias=family == "qwen2" or bias,
        out_bias=family != "qwen2" and bias,
        mlp_bias=family not in MIXTURES and bool(raw.get("mlp_bias", False)),
        max_positions=_size(raw, "max_position_embeddings", 4096),
        eos_token_ids=ends,
        raw=raw,
        experts=_experts(raw) if family in MIXTURES else None,
    )


def _experts(raw: dict[str, Any]) -> Experts:
    family, layers = raw["model_type"], range(_size(raw, "num_hidden_layers"))
    key = "num_experts" if raw.get("num_experts") is not None else "num_local_experts"  # transformers writes either
    count, per_token = _size(raw, key), _size(raw, "num_experts_per_tok")
    if per_token > count:
        raise ConfigError(f"num_experts_per_tok is {per_token}, of {count} experts: copy or download it again")
    dense, step = raw.get("mlp_only_layers") or (), raw.get("decoder_sparse_step") or 1
    if family != "qwen3_moe":
        dense, step = (), 1
    chosen = tuple(layer for layer in layers if layer not in dense and (layer + 1) % step == 0)
    if not chosen:
        raise ConfigError("mlp_only_layers and decoder_sparse_step leave no layer with experts: that is a qwen3 model")
    normed = family == "mixtral" or bool(raw.get("norm_topk_prob", False))
    return Experts(count, per_token, _size(raw, _EXPERT_FFN.get(family, "intermediate_size")), chosen, normed)


def _size(raw: dict[str, Any], key: str, default: int | None = None) -> int:
    value = raw.get(key)
    if value is None:
        value = default
    if value is None:
        raise ConfigError(f"{key} is missing; copy or download it again")
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{key} must be a whole number of at least 1, not {value!r:.40}")
    return value


def _number(value: Any, key: str) -> float:
    if not isinstance(value, int | float):
        raise ConfigError(f"{key} must be a number, not {value!r:.40}")
    return float(value)


def _end_tokens(config: dict[str, Any]) -> list[int]:
    ids = config.get("eos_token_id")
    found = ids if isinstance(ids, list) else [] if ids is None else [ids]
    if not all(isinstance(one, int) for one in found):
        raise ConfigError(f"eos_token_id must be a number or a list of such, not {ids!r:.40}")
    return found


def rope_type(rope: dict[str, Any]) -> str:
    return str(rope.get("rope_type", rope.get("type", "default")))
