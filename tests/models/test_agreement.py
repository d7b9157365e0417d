"""The decoder against transformers, in float32, for random small shapes of each family, out of and into folders."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from freerun.core import ConfigError
from freerun.models import checkpoint
from freerun.models.attention import PackedAttention
from freerun.models.checkpoint import load_decoder, save_decoder
from freerun.models.decoder import Decoder
from freerun.models.shape import read_shape, shape_of


def random_model(family: str, seed: int, folder: Path, **config: Any) -> Any:
    """A transformers model with random weights (norms and biases too), saved in the folder."""
    torch.manual_seed(seed)
    kind = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[family]
    settings = {"vocab_size": 97, "max_position_embeddings": 512, "bos_token_id": 0, "eos_token_id": 1, **config}
    model = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**settings))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.3 if parameter.dim() == 1 else 0.08))
    model.eval().save_pretrained(folder)
    return model


def logits(decoder: Decoder, sequences: list[list[int]]) -> torch.Tensor:
    tokens = torch.tensor([token for sequence in sequences for token in sequence])
    positions = torch.cat([torch.arange(len(sequence)) for sequence in sequences])
    with torch.no_grad():
        return decoder.logits(decoder(tokens, positions, PackedAttention([len(s) for s in sequences])))


LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
SCALINGS: list[dict[str, Any]] = [
    {}, {}, {"rope_type": "linear", "factor": 3.0}, LLAMA3, YARN, YARN | {"beta_fast": 8.0, "beta_slow": 0.5},
    YARN | {"truncate": False, "attention_factor": 0.8}, YARN | {"mscale": 0.7, "mscale_all_dim": 1.3},
]  # fmt: skip


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    kv_heads = draw(st.sampled_from([1, 2, 3]))
    heads = kv_heads * draw(st.sampled_from([1, 2, 3]))
    head_dim = draw(st.sampled_from([8, 16]))
    family = draw(st.sampled_from(["llama", "qwen2", "qwen3"]))
    config: dict[str, Any] = {
        "hidden_size": heads * head_dim if family != "qwen3" else draw(st.sampled_from([24, 40])),
        "num_hidden_layers": draw(st.integers(1, 3)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": draw(st.sampled_from([32, 72])),
        "tie_word_embeddings": draw(st.booleans()),
        "rms_norm_eps": draw(st.sampled_from([1e-5, 1e-6])),
    }
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": draw(st.sampled_from([1e4, 5e5]))}
    if family == "llama":
        config |= {"attention_bias": draw(st.booleans()), "mlp_bias": draw(st.booleans())}
    rope |= draw(st.sampled_from(SCALINGS))
    return {"family": family, "rope_parameters": rope, **config}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shapes(), st.integers(0, 10**6), st.lists(st.integers(1, 60), min_size=1, max_size=4), st.booleans())
def test_logits_equal_transformers(
    tmp_path_factory: pytest.TempPathFactory, config: dict[str, Any], seed: int, lengths: list[int], sharded: bool
) -> None:
    folder = tmp_path_factory.mktemp("model")
    config = dict(config)
    theirs = random_model(config.pop("family"), seed, folder, **config)
    if sharded:
        theirs.save_pretrained(folder, max_shard_size="20KB")
        if (folder / "model.safetensors.index.json").is_file():
            (folder / "model.safetensors").unlink(missing_ok=True)
    generator = torch.Generator().manual_seed(seed)
    sequences = [torch.randint(0, 97, (length,), generator=generator).tolist() for length in lengths]
    with torch.no_grad():
        expected = torch.cat([theirs(torch.tensor([sequence])).logits[0] for sequence in sequences])
    ours = load_decoder(folder)
    torch.testing.assert_close(logits(ours, sequences), expected, atol=1e-4, rtol=1e-4)

    saved = tmp_path_factory.mktemp("saved") / "model"
    save_decoder(ours, saved)
    again = transformers.AutoModelForCausalLM.from_pretrained(saved, dtype=torch.float32)
    for (name, parameter), (_, other) in zip(theirs.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(parameter, other), name


@pytest.mark.parametrize("scaling", [{}, {"rope_type": "linear", "factor": 4.0}, LLAMA3, YARN])
@pytest.mark.parametrize("first", [0, 32_700, 131_000])
def test_positions_far_away_are_transformers_too(tmp_path: Path, scaling: dict[str, Any], first: int) -> None:
    """Where angles are large: a model of so many positions, at the last of them."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "head_dim": 16, "intermediate_size": 48, "max_position_embeddings": 131_072}  # fmt: skip
    rope = {"rope_type": "default", "rope_theta": 1e6} | scaling
    if "original_max_position_embeddings" in scaling:
        rope["original_max_position_embeddings"] = 32_768
    theirs = random_model("qwen3", 0, tmp_path, rope_parameters=rope, **sizes)
    ours = load_decoder(tmp_path)
    tokens, positions = torch.arange(70) % 97, torch.arange(first, first + 70)
    with torch.no_grad():
        expected = theirs(tokens[None], position_ids=positions[None]).logits[0]
        got = ours.logits(ours(tokens, positions, PackedAttention([70])))
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def test_saving_in_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random_model("qwen3", 0, tmp_path / "a", hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=8, intermediate_size=48)  # fmt: skip
    monkeypatch.setattr(checkpoint, "SHARD_BYTES", 10_000)
    ours = load_decoder(tmp_path / "a")
    save_decoder(ours, tmp_path / "b", like=tmp_path / "a")
    index = json.loads((tmp_path / "b" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2
    assert (tmp_path / "b" / "generation_config.json").is_file()
    for model in (load_decoder(tmp_path / "b"), transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "b")):
        assert model is not None
    for mine, other in zip(ours.parameters(), load_decoder(tmp_path / "b").parameters(), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' is not known to Freerun's own code: leave model.backend=auto"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is"),
        ({"use_sliding_window": True}, "sliding"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, "dynamic"),
        ({"quantization_config": {"quant_method": "fp8"}}, "before quantisation"),
    ],
)
def test_what_it_cannot_compute_is_refused(change: dict[str, Any], says: str) -> None:
    raw = {"model_type": "qwen3", "vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1,
           "intermediate_size": 8}  # fmt: skip
    with pytest.raises(ConfigError, match=says):
        shape_of(raw | change, backend="own")


@pytest.mark.parametrize(
    ("config", "generation", "ends"),
    [
        ({"eos_token_id": 5}, {}, (5,)),
        ({"eos_token_id": [5, 6]}, None, (5, 6)),
        ({"eos_token_id": None}, {"eos_token_id": [7, 9]}, (7, 9)),
        ({}, {"eos_token_id": 7}, (7,)),
        ({"eos_token_id": 5}, {"eos_token_id": [5, 3]}, (5, 3)),
        ({}, {}, ()),
    ],
)
def test_end_tokens_are_those_of_both_files(
    config: dict[str, Any], generation: dict[str, Any] | None, ends: tuple[int, ...], tmp_path: Path
) -> None:
    raw = {"model_type": "qwen3", "vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1,
           "intermediate_size": 8}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(raw | config))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    shape = read_shape(tmp_path)
    assert shape.eos_token_ids == ends
    assert shape.raw == raw | config, "what is saved is what was read"


def test_weights_in_eight_bits_are_refused_and_other_formats_not_copied(tmp_path: Path) -> None:
    random_model("llama", 0, tmp_path / "a", hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                 intermediate_size=16, tie_word_embeddings=True)  # fmt: skip
    for name in ("pytorch_model.bin", "pytorch_model.bin.index.json", "model-q8.gguf", "tokenizer.model", "extra.json"):
        (tmp_path / "a" / name).write_text("{}")
    save_decoder(load_decoder(tmp_path / "a"), tmp_path / "b", like=tmp_path / "a")
    kept = {file.name for file in (tmp_path / "b").iterdir()}
    assert kept >= {"tokenizer.model", "extra.json", "model.safetensors"}
    assert not kept & {"pytorch_model.bin", "pytorch_model.bin.index.json", "model-q8.gguf"}
    file = tmp_path / "a" / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.0.self_attn.q_proj.weight"
    save_file(tensors | {name: tensors[name].to(torch.float8_e4m3fn)}, file)
    with pytest.raises(ConfigError, match="float8_e4m3fn: give the model as it was before"):
        load_decoder(tmp_path / "a")


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    random_model("llama", 0, tmp_path, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                 intermediate_size=16, tie_word_embeddings=True)  # fmt: skip
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    with pytest.raises(ConfigError, match=r"no tensor model\.layers\.1"):
        load_decoder(tmp_path)
