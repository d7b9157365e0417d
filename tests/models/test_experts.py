"""Mixtures of experts by our own code: against transformers in float64, out of and into folders; and the products."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from freerun.core import ConfigError
from freerun.models.attention import PackedAttention
from freerun.models.checkpoint import load_decoder, save_decoder
from freerun.models.decoder import Decoder
from freerun.models.experts import router_scores, through_experts, weights_of
from freerun.models.own import OwnDecoder
from freerun.models.shape import MIXTURES as FAMILIES
from freerun.models.shape import read_shape, shape_of
from freerun.models.weight_files import check_weights
from tests.architectures import random_folder
from tests.tiny import MIXTURES, TINY, mixture, tiny_decoder


def precise(folder: Path) -> Any:
    """transformers' model, in float64 throughout: its norms are in float32 whatever the weights are."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, experts_implementation="eager").eval()
    for part in model.modules():
        if type(part).__name__.endswith("RMSNorm"):
            part.forward = lambda x, norm=part: (
                norm.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)
            )
    return model


def logits(decoder: Decoder, lengths: list[int]) -> torch.Tensor:
    tokens, positions = torch.cat([drawn(length) for length in lengths]), torch.cat([torch.arange(n) for n in lengths])
    with torch.no_grad():
        return decoder.logits(decoder(tokens, positions, PackedAttention(lengths)))


def drawn(length: int) -> torch.Tensor:
    return torch.randint(2, 48, (length,), generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers_and_its_folder_comes_back(family: str, tmp_path: Path) -> None:
    folder = random_folder(family, tmp_path / "theirs", dtype=torch.float64, **MIXTURES[family])
    ours, theirs = load_decoder(folder, torch.float64), precise(folder)
    assert isinstance(ours, OwnDecoder)
    assert check_weights(folder, ours.shape) == []
    assert ours.shape.num_parameters == sum(p.numel() for p in ours.parameters() if p.dim() > 1)
    lengths = [23, 1, 40]
    with torch.no_grad():
        expected = torch.cat([theirs(drawn(length)[None]).logits[0] for length in lengths])
    torch.testing.assert_close(logits(ours, lengths), expected, atol=1e-9, rtol=1e-9)

    save_decoder(ours, tmp_path / "ours", like=folder)
    first, second = (load_file(place / "model.safetensors") for place in (folder, tmp_path / "ours"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    with torch.no_grad():
        assert torch.equal(precise(tmp_path / "ours")(drawn(23)[None]).logits[0], expected[:23])


def test_a_layer_may_have_one_network_for_all_tokens() -> None:
    shape = shape_of(TINY | mixture("qwen3_moe"))
    assert shape.experts
    assert shape.experts.layers == (0, 2)
    every_other = shape_of(TINY | mixture("qwen3_moe") | {"mlp_only_layers": [], "decoder_sparse_step": 2})
    assert every_other.experts
    assert every_other.experts.layers == (1,)
    with pytest.raises(ConfigError, match="leave no layer with experts"):
        shape_of(TINY | mixture("qwen3_moe") | {"mlp_only_layers": [0, 1, 2]})


def test_active_parameters_are_those_of_a_tokens_experts() -> None:
    shape = shape_of(TINY | mixture("mixtral"))
    expert = 3 * 32 * 24
    assert shape.num_parameters - shape.active_parameters == 2 * (4 - 2) * expert
    assert shape.token_ffn == 48
    dense = shape_of(TINY)
    assert dense.active_parameters == dense.num_parameters


@pytest.mark.parametrize(
    ("family", "change"),
    [("mixtral", {"sliding_window": 6}), ("olmoe", {"clip_qkv": 1.0}), ("qwen3_moe", {"use_sliding_window": True})],
)
def test_what_our_code_lacks_goes_to_theirs(family: str, change: dict[str, Any]) -> None:
    raw = TINY | mixture(family) | change
    assert shape_of(raw).backend == "transformers"
    with pytest.raises(ConfigError, match=next(iter(change))):
        shape_of(raw, backend="own")


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    folder = random_folder("mixtral", tmp_path, **MIXTURES["mixtral"])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_local_experts": 5}))
    with pytest.raises(ConfigError, match=r"no tensor model.layers.0.block_sparse_moe.experts.4.w1.weight and 5 more"):
        check_weights(folder, read_shape(folder))
    (folder / "config.json").write_text(json.dumps(config | {"num_experts_per_tok": 9}))
    with pytest.raises(ConfigError, match="num_experts_per_tok is 9, of 4 experts"):
        read_shape(folder)


@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize(("tokens", "experts", "per_token"), [(17, 5, 2), (1, 7, 3), (9, 4, 4), (30, 3, 1)])
def test_products_and_gradients_are_those_of_every_token_alone(
    tokens: int, experts: int, per_token: int, normed: bool
) -> None:
    generator = torch.Generator().manual_seed(tokens)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64).requires_grad_()

    x, router, gate_up, down = random(tokens, 8), random(experts, 8), random(experts, 12, 8), random(experts, 8, 6)
    chosen = router_scores(x, router)[:, : experts - 1 or 1].topk(min(per_token, experts - 1), dim=-1).indices
    wanted = torch.randn(tokens, 8, generator=generator, dtype=torch.float64)
    parts = x, router, gate_up, down

    def plain() -> torch.Tensor:
        rows = []
        for token in range(tokens):
            scores = (router @ x[token]).softmax(0, dtype=torch.float32)[chosen[token]]
            weights = scores / scores.sum() if normed else scores
            gates, ups = (gate_up[chosen[token]] @ x[token]).chunk(2, dim=1)
            made = (down[chosen[token]] @ (torch.nn.functional.silu(gates) * ups)[..., None]).squeeze(-1)
            rows.append((weights[:, None] * made).sum(0))
        return torch.stack(rows)

    ours = through_experts(x, weights_of(router_scores(x, router), chosen, normed), chosen, gate_up, down)
    torch.testing.assert_close(ours, plain(), atol=1e-10, rtol=1e-10)
    for mine, theirs in zip(
        torch.autograd.grad((ours * wanted).sum(), parts),
        torch.autograd.grad((plain() * wanted).sum(), parts),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, atol=2e-7, rtol=1e-6)
    ones = torch.ones_like(chosen, dtype=torch.float64)
    last = torch.autograd.grad(through_experts(x, ones, chosen, gate_up, down).sum(), gate_up)[0][-1]
    assert not last.any(), "without a token an expert learns nothing"


def test_in_bfloat16_the_router_is_not_rounded() -> None:
    x, weight = torch.randn(50, 64).bfloat16(), torch.randn(8, 64).bfloat16()
    expected = (x.double() @ weight.double().T).softmax(-1)
    assert (router_scores(x, weight).double() - expected).abs().max() < 1e-5
    assert router_scores(x, weight).dtype == torch.float32


@pytest.mark.parametrize("family", FAMILIES)
def test_recomputing_changes_nothing(family: str) -> None:
    gradients = []
    for recompute in (False, True):
        decoder = tiny_decoder(2, dtype=torch.float64, **mixture(family))
        decoder.arrange(compiled=False, recompute=recompute)
        hidden = decoder(drawn(20), torch.arange(20), PackedAttention([20]))
        torch.autograd.backward(decoder.logits(hidden).logsumexp(-1).sum())
        gradients.append({name: p.grad for name, p in decoder.named_parameters() if p.grad is not None})
        assert len(gradients[-1]) == len(list(decoder.named_parameters()))
    for name, grad in gradients[0].items():
        assert grad.any()
        assert torch.equal(grad, gradients[1][name]), name
