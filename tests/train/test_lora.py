"""LoRA against the plain decoder, and against peft on transformers' own model."""

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from freerun.core import ConfigError
from freerun.models.attention import PackedAttention
from freerun.models.checkpoint import load_decoder
from freerun.models.decoder import Decoder, Recompute
from freerun.models.own import OwnDecoder
from freerun.train.lora import adapter_state, attach, load_adapter, merged, save_adapter
from tests.models.test_agreement import logits, random_model
from tests.tiny import tiny_decoder

SEQUENCES = [[5, 17, 3, 28, 41, 9, 40], [2, 31, 33], [47, 12, 12, 44, 7]]
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
    "qwen2": {"tie_word_embeddings": True},  # biases on q, k and v alone
    "qwen3": {"tie_word_embeddings": True, "head_dim": 16},
}


@pytest.fixture(scope="module", params=FAMILIES)
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a transformers model with random weights."""
    folder = tmp_path_factory.mktemp(request.param)
    random_model(request.param, 0, folder, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, intermediate_size=48, **FAMILIES[request.param])  # fmt: skip
    return folder


def loss_of(decoder: Decoder) -> Tensor:
    """The log-probability of each token, given those before it."""
    tokens = torch.tensor([token for sequence in SEQUENCES for token in sequence])
    positions = torch.cat([torch.arange(len(sequence)) for sequence in SEQUENCES])
    hidden = decoder(tokens, positions, PackedAttention([len(sequence) for sequence in SEQUENCES]))
    within = positions[1:] > 0
    return torch.nn.functional.cross_entropy(decoder.logits(hidden[:-1][within]), tokens[1:][within])


def train(decoder: Decoder, steps: int = 8) -> list[float]:
    optimizer = torch.optim.SGD([p for p in decoder.parameters() if p.requires_grad], lr=1.0)
    losses = []
    for _ in range(steps):
        loss = loss_of(decoder)
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def trained(folder: Path, **options: Any) -> Decoder:
    decoder = load_decoder(folder)
    attach(decoder, **{"rank": 3, "alpha": 6.0, **options})
    train(decoder)
    return decoder


def plain(decoder: Decoder) -> Decoder:
    """The decoder an engine would have after this one was published."""
    fresh = OwnDecoder(decoder.shape).to(decoder.embed.weight.dtype)
    tensors = dict(merged(decoder))
    assert list(tensors) == [name for name, _ in fresh.named_parameters()]
    fresh.load_state_dict(tensors, strict=False)
    return fresh


def gradients(decoder: Decoder) -> dict[str, Tensor]:
    decoder.zero_grad()
    torch.autograd.backward(loss_of(decoder))
    return {name: p.grad.clone() for name, p in decoder.named_parameters() if p.grad is not None}


def test_an_untrained_adapter_changes_nothing(base: Path) -> None:
    decoder = load_decoder(base)
    before, names = logits(decoder, SEQUENCES), dict(decoder.named_parameters())
    attach(decoder, rank=3, alpha=6.0)
    assert torch.equal(logits(decoder, SEQUENCES), before)
    weights = dict(merged(decoder))
    assert list(weights) == list(names)
    assert all(torch.equal(weights[name], tensor) for name, tensor in names.items())


def test_only_the_adapter_learns(base: Path) -> None:
    decoder = load_decoder(base)
    attach(decoder, rank=3, alpha=6.0)
    before = {name: parameter.detach().clone() for name, parameter in decoder.named_parameters()}
    adapter = set(adapter_state(decoder))
    assert len(adapter) == 2 * 2 * 4  # A and B, two layers, four matrices each
    train(decoder, steps=1)  # B leaves zero, so that A has a gradient too
    assert set(gradients(decoder)) == adapter
    losses = train(decoder, steps=40)
    assert losses[-1] < losses[0] - 0.1
    assert {name for name, p in decoder.named_parameters() if not torch.equal(p, before[name])} == adapter


def test_merged_weights_compute_the_same(base: Path) -> None:
    decoder = trained(base)
    before = {name: parameter.detach().clone() for name, parameter in decoder.named_parameters()}
    adapted = logits(decoder, SEQUENCES)
    assert (adapted - logits(load_decoder(base), SEQUENCES)).abs().max() > 0.1
    torch.testing.assert_close(logits(plain(decoder), SEQUENCES), adapted, atol=1e-5, rtol=1e-5)
    assert all(torch.equal(parameter, before[name]) for name, parameter in decoder.named_parameters())


@pytest.mark.parametrize("targets", [None, ["gate_up", "out"]])
def test_peft_loads_it_on_transformers(base: Path, tmp_path: Path, targets: list[str] | None) -> None:
    decoder = trained(base, targets=targets, dropout=0.1)
    save_adapter(decoder.eval(), tmp_path / "adapter", str(base))
    assert [file.name for file in tmp_path.iterdir()] == ["adapter"]
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    theirs = peft.PeftModel.from_pretrained(model, tmp_path / "adapter").eval()
    with torch.no_grad():
        expected = torch.cat([theirs(torch.tensor([sequence])).logits[0] for sequence in SEQUENCES])
    torch.testing.assert_close(logits(decoder, SEQUENCES), expected, atol=1e-4, rtol=1e-4)
    config = peft.PeftConfig.from_pretrained(tmp_path / "adapter")
    assert (config.base_model_name_or_path, config.r, config.lora_alpha, config.lora_dropout) == (str(base), 3, 6, 0.1)


def test_loading_gives_back_what_was_saved(base: Path, tmp_path: Path) -> None:
    decoder = trained(base)
    save_adapter(decoder, tmp_path / "adapter", str(base))
    again = load_decoder(base)
    attach(again, rank=3, alpha=6.0, seed=1)
    load_adapter(again, tmp_path / "adapter")
    saved, loaded = adapter_state(decoder), adapter_state(again)
    assert list(saved) == list(loaded)
    assert all(torch.equal(saved[name], loaded[name]) for name in saved)
    assert train(again, steps=2) == train(decoder, steps=2)


def test_in_bfloat16_the_adapter_is_its_own_type() -> None:
    decoder = tiny_decoder(dtype=torch.bfloat16)
    attach(decoder, rank=3, alpha=5.0)
    train(decoder)
    state = adapter_state(decoder)
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}
    assert logits(decoder, SEQUENCES).dtype == torch.bfloat16
    a, b = (state[f"layers.0.qkv.lora_{x}"].double() for x in "ab")
    weight = dict(decoder.named_parameters())["layers.0.qkv.weight"]
    exact = (weight.double() + 5 / 3 * b @ a).bfloat16()
    published = dict(merged(decoder))["layers.0.qkv.weight"]
    assert published.dtype == torch.bfloat16
    assert not torch.equal(published, weight)
    assert (published == exact).float().mean() > 0.99  # the rest lie on an edge of rounding
    half = tiny_decoder(dtype=torch.bfloat16)
    attach(half, rank=3, alpha=5.0, dtype=torch.bfloat16)
    assert {tensor.dtype for tensor in adapter_state(half).values()} == {torch.bfloat16}


def test_the_seed_decides_the_start_and_the_global_one_is_left_alone() -> None:
    decoders = [tiny_decoder() for _ in range(3)]
    torch.manual_seed(7)
    for decoder, seed in zip(decoders, (1, 1, 2), strict=True):
        attach(decoder, rank=2, alpha=4.0, seed=seed)
    drawn = torch.rand(3)
    first, same, other = (adapter_state(d)["layers.1.down.lora_a"] for d in decoders)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(7)))


def test_gradients_under_checkpointing_and_compilation() -> None:
    decoder = tiny_decoder()
    attach(decoder, rank=3, alpha=6.0)
    train(decoder, steps=2)
    expected = gradients(decoder)
    for layer in decoder.layers:
        forward = layer.forward
        layer.forward = lambda *args, forward=forward: checkpoint(forward, *args, use_reentrant=False)
    checkpointed = gradients(decoder)
    for layer in decoder.layers:
        del layer.forward
        layer.compile(backend="aot_eager", fullgraph=True)
    compiled = gradients(decoder)
    for name, gradient in expected.items():
        torch.testing.assert_close(checkpointed[name], gradient)
        torch.testing.assert_close(compiled[name], gradient)


@pytest.mark.parametrize("recompute", [True, "all", "offload"])
def test_what_is_computed_again_is_the_same_and_less_is_kept(recompute: Recompute) -> None:
    plain, other = tiny_decoder(), tiny_decoder()
    kept = []
    for decoder in (plain, other):
        attach(decoder, rank=3, alpha=6.0)
        train(decoder, steps=1)
    other.arrange(compiled=False, recompute=recompute)
    for decoder in (plain, other):
        sizes: list[int] = []

        def keep(x: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(x.numel())
            return x

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            loss_of(decoder)
        kept.append(sum(sizes))
    assert kept[1] < kept[0] * (0.8 if recompute is True else 0.5)
    for name, gradient in gradients(plain).items():
        torch.testing.assert_close(gradients(other)[name], gradient)


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = tiny_decoder()
    attach(decoder, rank=2, alpha=4.0)
    save_adapter(decoder, tmp_path / "adapter", "here")
    with monkeypatch.context() as broken:
        broken.setattr(Path, "write_text", _disk_full)  # the tensors are written by then
        with pytest.raises(OSError, match="full"):
            save_adapter(decoder, tmp_path / "adapter", "there")
    assert peft.PeftConfig.from_pretrained(tmp_path / "adapter").base_model_name_or_path == "here"
    save_adapter(decoder, tmp_path / "adapter", "there")
    assert peft.PeftConfig.from_pretrained(tmp_path / "adapter").base_model_name_or_path == "there"
    assert len(list(tmp_path.iterdir())) == 1


def _disk_full(*_: object) -> None:
    raise OSError("the disk is full")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rank": 4}, "r is 2 there and 4 in this run"),
        ({"alpha": 5.0}, "lora_alpha is 4 there and 5 in this run"),
        ({"targets": ["qkv"]}, r"holds .*mlp\.down_proj"),
    ],
)
def test_an_adapter_of_another_kind_is_refused(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    decoder, other = tiny_decoder(), tiny_decoder()
    attach(decoder, rank=2, alpha=4.0)
    save_adapter(decoder, tmp_path / "adapter", "base")
    attach(other, **{"rank": 2, "alpha": 4.0, **options})
    with pytest.raises(ConfigError, match=says):
        load_adapter(other, tmp_path / "adapter")


def test_an_adapter_with_an_a_for_each_is_refused_whole(tmp_path: Path) -> None:
    decoder = tiny_decoder()
    attach(decoder, rank=2, alpha=4.0)
    save_adapter(decoder, tmp_path / "adapter", "base")
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    tensors = {name: tensor + 1 for name, tensor in load_file(file).items()}
    tensors["base_model.model.model.layers.1.self_attn.k_proj.lora_A.weight"][0, 0] += 1
    save_file(tensors, file)
    before = {name: tensor.clone() for name, tensor in adapter_state(decoder).items()}
    with pytest.raises(ConfigError, match="q_proj, k_proj, v_proj must share one lora_A"):
        load_adapter(decoder, tmp_path / "adapter")
    assert all(torch.equal(tensor, before[name]) for name, tensor in adapter_state(decoder).items())
    file.unlink()
    with pytest.raises(ConfigError, match=r"has no adapter_model\.safetensors"):
        load_adapter(decoder, tmp_path / "adapter")


@pytest.mark.parametrize("targets", [[], ["qkv", "q_proj"]])
def test_unknown_targets_are_refused(targets: list[str]) -> None:
    with pytest.raises(ConfigError, match="can adapt qkv, out, gate_up, down"):
        attach(tiny_decoder(), rank=2, alpha=4.0, targets=targets)
