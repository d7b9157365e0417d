"""Architectures whose code is transformers': packed, served, saved, refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from freerun.core import ConfigError
from freerun.engines.config import EngineConfig
from freerun.engines.embedded.engine import EmbeddedEngine
from freerun.engines.embedded.sequence import EndedAnswer
from freerun.models.attention import PackedAttention
from freerun.models.borrowed import check_packing
from freerun.models.checkpoint import load_decoder, save_decoder
from freerun.models.shape import read_shape, shape_of
from freerun.models.weight_files import check_weights
from tests.architectures import PACKED, random_decoder, random_folder
from tests.engines.test_embedded import SAMPLING, recomputed, run

SERVED = ("gemma2", "gemma3_text", "phi", "cohere2", "gpt_oss", "deepseek_v3", "mixtral", "gpt2", "starcoder2")
"""Windows, caps, sinks, values of another width than keys, experts, positions that are learned, biases."""


@pytest.mark.parametrize("family", PACKED)
def test_it_is_packed_and_its_folder_comes_back(family: str, tmp_path: Path) -> None:
    theirs = random_folder(family, tmp_path / "theirs")
    decoder = load_decoder(theirs, backend="transformers")  # which checks that it can be packed
    assert check_weights(theirs, decoder.shape) == []
    save_decoder(decoder, tmp_path / "ours", like=theirs)
    first, second = (load_file(folder / "model.safetensors") for folder in (theirs, tmp_path / "ours"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    tokens = torch.arange(2, 30)[None]
    with torch.no_grad():
        before, after = (
            AutoModelForCausalLM.from_pretrained(folder)(input_ids=tokens).logits
            for folder in (theirs, tmp_path / "ours")
        )
    assert torch.equal(before, after)


@pytest.mark.parametrize("family", SERVED)
def test_answers_agree_with_the_packed_pass_by_each_tokens_version(family: str) -> None:
    """Prompts that share their beginning, in pieces, longer than a window; weights that change in mid-answer."""
    versions = [random_decoder(family, seed) for seed in range(3)]
    config = EngineConfig(max_running=5, cache_tokens=1024).on("cpu", step_tokens=16)
    engine = EmbeddedEngine(random_decoder(family, 0), config)
    prompts = {"a": [2 + i % 40 for i in range(21)], "b": [5, 6, 7]}
    for id, prompt in prompts.items():
        engine.submit(id, prompt, replace(SAMPLING, max_new_tokens=30), 3)
    done: dict[tuple[str, int], EndedAnswer] = {}
    for step in range(10_000):
        done |= {(id, answer.index): answer for id, answer in engine.step()}
        if step in (9, 20):
            engine.update_weights(engine.version + 1, dict(versions[engine.version + 1].named_parameters()))
        if not engine.has_work:
            break
    done |= run(engine)
    assert len(done) == 6
    assert len({version for answer in done.values() for version in answer.versions}) == 3
    for (id, _), answer in done.items():
        for version in set(answer.versions):
            at = [place for place, theirs in enumerate(answer.versions) if theirs == version]
            expected = recomputed(versions[version], prompts[id], answer.tokens)[at]
            torch.testing.assert_close(torch.tensor([answer.logprobs[i] for i in at]), expected, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize(
    ("family", "says"),
    [
        ("bloom", "bloom models cannot be trained packed: a sequence in a row changes what follows it"),
        ("doge", "doge models cannot be trained packed: logits differ by"),
        ("qwen3_next", "qwen3_next models have layers of linear_attention"),
        ("bert", "BertSelfAttention has an attention that is not causal"),
        ("mamba", "mamba is no model of text alone"),
        ("gptj", "transformers cannot make this gptj model"),
    ],
)
def test_what_leaks_from_one_sequence_into_the_next_is_refused_by_name(family: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_packing(random_decoder(family))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_tensors_that_are_missing_or_too_many_are_named(tmp_path: Path) -> None:
    file = random_folder("gemma2", tmp_path) / "model.safetensors"
    tensors = load_file(file)
    lost = "model.layers.1.mlp.up_proj.weight"
    save_file({name: tensor for name, tensor in tensors.items() if name != lost}, file, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=f"holds no tensor {lost}, which its config.json asks for"):
        check_weights(tmp_path, read_shape(tmp_path))
    save_file(tensors | {"surplus": torch.zeros(2)}, file, metadata={"format": "pt"})
    assert check_weights(tmp_path, read_shape(tmp_path)) == ["surplus"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"model_type": "brand_new", "auto_map": {"AutoModelForCausalLM": "new.New"}},
            "brings code of its own",
        ),
        ({"num_attention_heads": "many"}, "config.json"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "as it was before quantisation"),
    ],
)
def test_folders_that_cannot_be_loaded_say_why_in_a_line(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    path = random_folder("gemma2", tmp_path) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ConfigError) as caught:
        load_decoder(tmp_path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_whose_code_it_is(tmp_path: Path) -> None:
    llama = random_folder("llama", tmp_path / "llama")
    assert read_shape(llama).backend == "own"
    assert read_shape(llama, "transformers").backend == "transformers"
    with pytest.raises(ConfigError, match="model_type 'gemma2' is not known to Freerun's own code"):
        read_shape(random_folder("gemma2", tmp_path / "gemma2"), "own")
    tokens, positions = torch.arange(2, 20), torch.arange(18)
    with torch.no_grad():
        own, borrowed = (
            decoder.logits(decoder(tokens, positions, PackedAttention([18])))
            for decoder in (load_decoder(llama), load_decoder(llama, backend="transformers"))
        )
    torch.testing.assert_close(own, borrowed, atol=1e-5, rtol=1e-5)


LONG = {
    "rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 10_000.0,
    "short_factor": [1.0] * 4, "long_factor": [2.0] * 4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "change", "positions"),
    [
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0}}, 512),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}, 512),
        ("phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 128}, 128),
    ],
)
def test_what_our_code_lacks_goes_to_theirs(family: str, change: dict[str, Any], positions: int) -> None:
    """Where frequencies depend on the longest sequence of a pass, positions end before that begins."""
    decoder = random_decoder(family, **change)
    check_packing(decoder)
    assert shape_of(decoder.shape.raw).backend == "transformers"
    assert decoder.shape.max_positions == positions
