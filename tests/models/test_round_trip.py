"""Checkpoints in and out: one file or sharded, tied or untied, float32 or bfloat16, our code or transformers'. What we
write loads in transformers without a tensor too few or too many, and says the same."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from freerun.core import ConfigError
from freerun.models import checkpoint
from freerun.models.attention import PackedAttention
from freerun.models.checkpoint import load_decoder, save_decoder
from freerun.models.shape import read_shape
from freerun.models.weight_files import SINGLE, check_weights
from tests.architectures import raw_config

TOKENS = torch.arange(2, 30)


def their_folder(folder: Path, family: str, dtype: torch.dtype, sharded: bool, **changes: Any) -> Path:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    torch.manual_seed(0)
    config = CONFIG_MAPPING[family].from_dict(raw_config(family, **changes))
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    model.to(dtype).save_pretrained(folder, max_shard_size="10KB" if sharded else "1GB")
    assert (folder / SINGLE).is_file() is not sharded
    return folder


def logprobs(folder: Path, dtype: torch.dtype) -> Tensor:
    model, told = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    assert not any(told[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), told
    with torch.no_grad():
        found: Tensor = model.eval()(input_ids=TOKENS[None]).logits[0].float().log_softmax(-1)
    return found


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma2", "qwen3_moe", "gpt2"])
def test_what_we_write_loads_in_transformers_and_says_the_same(
    family: str, tied: bool, dtype: torch.dtype, sharded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = their_folder(tmp_path / "theirs", family, dtype, sharded, tie_word_embeddings=tied)
    shape = read_shape(theirs)
    assert shape.tied is tied
    assert check_weights(theirs, shape) == []
    decoder = load_decoder(theirs, dtype)
    assert {parameter.dtype for parameter in decoder.parameters()} == {dtype}
    if sharded:
        monkeypatch.setattr(checkpoint, "SHARD_BYTES", 10_000)
    save_decoder(decoder, tmp_path / "ours", like=theirs)
    assert (tmp_path / "ours" / SINGLE).is_file() is not sharded
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")
    assert check_weights(tmp_path / "ours", read_shape(tmp_path / "ours")) == []
    assert torch.equal(logprobs(tmp_path / "ours", dtype), logprobs(theirs, dtype))
    if dtype == torch.float32:
        with torch.no_grad():
            hidden = decoder(TOKENS, torch.arange(len(TOKENS)), PackedAttention([len(TOKENS)]))
        mine = decoder.logits(hidden).log_softmax(-1)
        torch.testing.assert_close(mine, logprobs(tmp_path / "ours", dtype), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["qwen3", "gemma2"])
def test_bf16_weights_are_learned_in_float32_and_float32_ones_served_in_bf16(family: str, tmp_path: Path) -> None:
    low = their_folder(tmp_path / "low", family, torch.bfloat16, sharded=True)
    decoder = load_decoder(low, torch.float32)
    assert all(torch.equal(p, p.to(torch.bfloat16).float()) for p in decoder.parameters())
    wide = their_folder(tmp_path / "wide", family, torch.float32, sharded=False)
    save_decoder(load_decoder(wide, torch.bfloat16), tmp_path / "out", like=wide)
    assert torch.equal(logprobs(tmp_path / "out", torch.bfloat16), logprobs(wide, torch.bfloat16))


@pytest.mark.parametrize("family", ["qwen3", "gemma2"])
def test_a_tied_model_may_have_its_head_in_the_file_as_well(family: str, tmp_path: Path) -> None:
    folder = their_folder(tmp_path / "model", family, torch.float32, sharded=False, tie_word_embeddings=True)
    tensors = load_file(folder / SINGLE)
    before = logprobs(folder, torch.float32)
    head = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors | {"lm_head.weight": head}, folder / SINGLE, {"format": "pt"})
    assert check_weights(folder, read_shape(folder)) == ["lm_head.weight"]
    save_decoder(load_decoder(folder), tmp_path / "out", like=folder)
    assert "lm_head.weight" not in load_file(tmp_path / "out" / SINGLE)
    assert torch.equal(logprobs(tmp_path / "out", torch.float32), before)


@pytest.mark.parametrize("family", ["qwen3", "gemma2"])
@pytest.mark.parametrize("sharded", [False, True])
def test_whoever_loads_a_folder_that_lacks_a_tensor_is_told_its_name(
    family: str, sharded: bool, tmp_path: Path
) -> None:
    """Also where nobody has looked at the headers first: transformers alone would make the tensor up."""
    folder = their_folder(tmp_path / "model", family, torch.float32, sharded)
    lost = "model.layers.1.mlp.down_proj.weight"
    for file in folder.glob("*.safetensors"):
        save_file({name: t for name, t in load_file(file).items() if name != lost}, file, {"format": "pt"})
    if sharded:
        index = folder / "model.safetensors.index.json"
        content = json.loads(index.read_text())
        del content["weight_map"][lost]
        index.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=f"holds no tensor {lost}") as refused:
        load_decoder(folder)
    assert "\n" not in str(refused.value)
    with pytest.raises(ConfigError, match=f"holds no tensor {lost}"):
        check_weights(folder, read_shape(folder))


@pytest.mark.parametrize("family", ["qwen3", "gemma2"])
def test_a_tensor_of_another_shape_is_told_by_whoever_loads_it(family: str, tmp_path: Path) -> None:
    folder = their_folder(tmp_path / "model", family, torch.float32, sharded=False)
    name = "model.layers.1.mlp.down_proj.weight"
    tensors = load_file(folder / SINGLE)
    save_file(tensors | {name: tensors[name][:-1].contiguous()}, folder / SINGLE, {"format": "pt"})
    with pytest.raises(ConfigError, match="shape") as refused:
        load_decoder(folder)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("key", ["quantization_config", "compression_config"])
@pytest.mark.parametrize("family", ["qwen3", "gemma2"])
def test_quantised_folders_are_refused_with_what_to_do(family: str, key: str, tmp_path: Path) -> None:
    folder = their_folder(tmp_path / "model", family, torch.float32, sharded=False)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: {"quant_method": "gptq", "bits": 4}}))
    with pytest.raises(ConfigError, match="give the model as it was before quantisation"):
        read_shape(folder)
