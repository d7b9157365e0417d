"""The weights of a model folder, checked without loading them: which tensors the files hold, of which shape and type,
whether each file is whole, and whether that is what the model's `config.json` asks for.

Reads the headers of safetensors files alone: an 8-byte length and a JSON object, which says where in the file each
tensor lies. No torch, so that a run can be refused before anything starts.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from freerun.core import ConfigError
from freerun.core.text import counted, did_you_mean
from freerun.models.shape import Experts, Shape, other_formats, refuse_adapter_alone

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_LONGEST_HEADER = 100_000_000
"""What safetensors itself accepts."""
_BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U8": 8, "BOOL": 8}
KNOWN_TYPES = ("F32", "BF16", "F16", "F64")
"""Those that the decoder loads."""
EXPERT_NAMES = {
    "qwen3_moe": ("mlp", "gate_proj", "up_proj", "down_proj"),
    "olmoe": ("mlp", "gate_proj", "up_proj", "down_proj"),
    "mixtral": ("block_sparse_moe", "w1", "w3", "w2"),
}
"""By family: what the experts of a layer and their router are called, and the three matrices of each."""
_ONCE_WRITTEN = re.compile(r"rotary_emb\.inv_freq$|\.attn\.(masked_)?bias$")
"""Tensors that older versions of transformers wrote."""
_QUANTISED = (".qweight", ".weight_packed", ".weight_scale", ".weight_scale_inv", ".absmax", ".SCB")
"""How the names of tensors end that quantisation writes."""
_COPY_AGAIN = "copy or download it again"


@dataclass(frozen=True)
class StoredTensor:
    file: str
    type: str
    shape: tuple[int, ...]


def check_weights(folder: Path, shape: Shape) -> list[str]:
    """Refuse weights that the model of that shape cannot be loaded from. Returns the names of tensors that it does not
    use."""
    stored, wanted = stored_tensors(folder), wanted_tensors(shape)
    missing = [name for name in wanted if name not in stored]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ConfigError(
            f"model.path: {folder} holds no tensor {missing[0]}{more}, which its config.json asks for"
            f"{_what_to_do(missing[0], stored, wanted, shape)}"
        )
    for name, expected in wanted.items():
        found = stored[name]
        if found.type not in KNOWN_TYPES:
            raise ConfigError(
                f"model.path: {folder / found.file}: {name} is of type {found.type}, and must be one of "
                f"{', '.join(KNOWN_TYPES)}: give the model as it was before that"
            )
        if found.shape != expected:
            raise ConfigError(
                f"model.path: {folder / found.file}: {name} has shape {list(found.shape)}, and config.json asks for "
                f"{list(expected)}: they are of two models"
            )
    return [name for name in stored if name not in wanted]


def unused_weights(unused: Sequence[str], shape: Shape, folder: Path) -> str | None:
    """A word on those tensors, which may be of another model; not on what is written twice, or was once and is computed
    now."""
    tied = ("lm_head.weight",) if shape.tied else ()
    odd = [name for name in unused if name not in tied and not _ONCE_WRITTEN.search(name)]
    if not odd:
        return None
    more = f" and {counted(len(odd) - 1, 'more tensor')}" if len(odd) > 1 else ""
    return f"{odd[0]}{more} of {folder} will not be used: its config.json describes a model without"


def _what_to_do(
    missing: str, stored: Mapping[str, StoredTensor], wanted: Mapping[str, tuple[int, ...]], shape: Shape
) -> str:
    """By what is there instead."""
    others = stored.keys() - wanted.keys()
    if any(name.endswith(_QUANTISED) for name in others):
        return ": its weights are quantised; give the model as it was before quantisation"
    if any(".base_layer." in name or ".lora_A." in name for name in others):
        return ": it has an adapter inside; merge that by peft's merge_and_unload, and give the folder that this saves"
    made = [name for name in shape.raw.get("architectures") or () if isinstance(name, str)]
    if made and not any(word in name for name in made for word in ("LM", "Generation")):
        return f": it is a {made[0]}, which writes no text; give a language model"
    return did_you_mean(missing, others, similarity=0.8) or f": {_COPY_AGAIN}"


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """By name, over all files of the folder. A file that is missing or damaged is a ConfigError."""
    files = shard_names(folder)
    if not files:
        refuse_adapter_alone(folder)
        lacks = f"{SINGLE}{other_formats(folder)}"
        raise ConfigError(f"model.path: {folder} has no {lacks}: give a folder with the weights as safetensors")
    return {name: tensor for file in files for name, tensor in _header(folder, file)}


def count_numbers(folder: Path) -> int:
    """In all tensors of the folder."""
    return sum(prod(tensor.shape) for tensor in stored_tensors(folder).values())


def shard_names(folder: Path) -> list[str]:
    """The files that hold its weights, as its index names them; none where there are no weights."""
    index = folder / INDEX
    if not index.is_file():
        return [SINGLE] if (folder / SINGLE).is_file() else []
    return sorted(set(read_index(folder).values()))


def read_index(folder: Path) -> dict[str, str]:
    """Which file holds each tensor; empty for a folder of one file."""
    index = folder / INDEX
    if not index.is_file():
        return {}
    content = _json(index, index.read_bytes())
    where = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(where, dict) or not where or not all(isinstance(file, str) for file in where.values()):
        raise ConfigError(f"model.path: {index} has no weight_map of tensors and files: {_COPY_AGAIN}")
    return where


def _header(folder: Path, name: str) -> Iterator[tuple[str, StoredTensor]]:
    file = folder / name
    if not file.is_file():
        raise ConfigError(f"model.path: {folder} lacks {name}, which {INDEX} names: {_COPY_AGAIN}")
    size = file.stat().st_size
    with file.open("rb") as opened:
        begins = opened.read(8)
        length = int.from_bytes(begins, "little")
        if begins.startswith(b"version "):
            raise ConfigError(f"model.path: {file} is a pointer of Git LFS, not the weights: run `git lfs pull` there")
        if len(begins) < 8 or not 2 <= length <= _LONGEST_HEADER:
            raise ConfigError(f"model.path: {file} ({size:,} bytes) is no safetensors file: {_COPY_AGAIN}")
        if size < 8 + length:
            raise ConfigError(f"model.path: {file} is cut off after {size:,} bytes, in its header: {_COPY_AGAIN}")
        content = _json(file, opened.read(length))
    ends = 0
    try:
        for tensor, told in content.items():
            if tensor != "__metadata__":
                begin, end = told["data_offsets"]
                shape = tuple(int(one) for one in told["shape"])
                bits = _BITS.get(told["dtype"])
                if bits is not None and end - begin != prod(shape) * bits // 8:
                    raise ValueError
                ends = max(ends, end)
                yield tensor, StoredTensor(name, told["dtype"], shape)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ConfigError(f"model.path: {file} has a damaged header: {_COPY_AGAIN}") from None
    if size < 8 + length + ends:
        whole = 8 + length + ends
        raise ConfigError(f"model.path: {file} is cut off: it has {size:,} of {whole:,} bytes; {_COPY_AGAIN}")


def _json(file: Path, content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise ConfigError(f"model.path: {file} is damaged: {_COPY_AGAIN}") from None


def wanted_tensors(shape: Shape) -> dict[str, tuple[int, ...]]:
    """The tensors of a Hugging Face folder of that shape, by name. For code that is not ours this takes seconds."""
    if shape.backend == "transformers":
        from freerun.models.borrowed import empty_borrowed, to_checkpoint

        decoder = empty_borrowed(shape)
        tensors = dict(decoder.named_parameters()) | decoder.fixed()
        return {name: tuple(tensor.shape) for name, tensor in to_checkpoint(tensors, shape).items()}
    hidden, queries, keys = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    wanted: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocab_size, hidden)}
    for layer in range(shape.layers):
        for name, sizes in _layer(shape, layer, hidden, queries, keys):
            wanted[f"model.layers.{layer}.{name}"] = sizes
    wanted["model.norm.weight"] = (hidden,)
    return wanted if shape.tied else wanted | {"lm_head.weight": (shape.vocab_size, hidden)}


def _layer(shape: Shape, index: int, hidden: int, queries: int, keys: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "input_layernorm.weight", (hidden,)
    for part, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
        yield f"self_attn.{part}.weight", (rows, hidden)
        if shape.qkv_bias:
            yield f"self_attn.{part}.bias", (rows,)
    if shape.qk_norm or shape.wide_qk_norm:
        yield "self_attn.q_norm.weight", (queries if shape.wide_qk_norm else shape.head_dim,)
        yield "self_attn.k_norm.weight", (keys if shape.wide_qk_norm else shape.head_dim,)
    yield "self_attn.o_proj.weight", (hidden, queries)
    if shape.out_bias:
        yield "self_attn.o_proj.bias", (hidden,)
    yield "post_attention_layernorm.weight", (hidden,)
    if shape.experts and index in shape.experts.layers:
        yield from _experts(shape.family, shape.experts, hidden)
        return
    for part, rows, columns in (
        ("gate_proj", shape.ffn, hidden),
        ("up_proj", shape.ffn, hidden),
        ("down_proj", hidden, shape.ffn),
    ):
        yield f"mlp.{part}.weight", (rows, columns)
        if shape.mlp_bias:
            yield f"mlp.{part}.bias", (rows,)


def _experts(family: str, experts: Experts, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    mixture, gate, up, down = EXPERT_NAMES[family]
    yield f"{mixture}.gate.weight", (experts.count, hidden)
    for one in range(experts.count):
        yield f"{mixture}.experts.{one}.{gate}.weight", (experts.ffn, hidden)
        yield f"{mixture}.experts.{one}.{up}.weight", (experts.ffn, hidden)
        yield f"{mixture}.experts.{one}.{down}.weight", (hidden, experts.ffn)
