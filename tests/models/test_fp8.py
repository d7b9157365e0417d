"""Weights and inputs of 8 bits: what they stand for, on a GPU as on a CPU, and which models have none."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from freerun.core import ConfigError
from freerun.models.attention import PackedAttention
from freerun.models.fp8 import CODE, Fp8Linear, fp8_layers, is_fp8, round_layers, rounded
from freerun.models.fp8_tiling import Tilings, kinds
from freerun.models.shape import fp8_bytes
from tests.architectures import random_decoder
from tests.tiny import mixture, tiny_decoder

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def random_rows(rows: int, width: int, seed: int = 0) -> torch.Tensor:
    """As activations are: some numbers of a row are far larger than the others."""
    generator = torch.Generator().manual_seed(seed)
    rows_RK = torch.randn(rows, width, generator=generator)
    rows_RK[:, ::17] *= 20
    return rows_RK.to(DEVICE)


def test_rows_are_close_to_what_they_were() -> None:
    x = random_rows(40, 320)
    x[3] = 0
    x[4] *= 1e6
    x[5] *= 1e-6
    codes, scales = rounded(x)
    assert codes.dtype == CODE
    wide = codes.float() * scales[:, None]
    assert wide[3].eq(0).all()
    off = (wide - x).norm(dim=-1) / x.norm(dim=-1).clamp_min(1e-30)
    assert off.max() < 0.04
    torch.testing.assert_close(wide.abs().amax(-1), x.abs().amax(-1), rtol=1e-5, atol=1e-12)
    again = rounded(wide)
    torch.testing.assert_close(again.wide, wide, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("bias", [False, True])
def test_a_product_is_that_of_what_the_codes_stand_for(bias: bool) -> None:
    base = nn.Linear(96, 80, bias=bias, device=DEVICE)
    layer = Fp8Linear(base, Tilings())
    x = random_rows(19, 96)
    weight = rounded(base.weight.detach()).wide.double()
    expected = F.linear(rounded(x).wide.double(), weight, None if base.bias is None else base.bias.double())
    with torch.no_grad():
        got = layer(x)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), expected, rtol=2e-3, atol=2e-3)
    assert (got - base(x)).norm() / base(x).norm() < 0.06


def test_another_weight_is_taken_where_the_one_before_was() -> None:
    layer, other = Fp8Linear(nn.Linear(48, 32, device=DEVICE), Tilings()), nn.Linear(48, 32, device=DEVICE)
    places = layer.weight.data_ptr(), layer.scales.data_ptr()
    layer.take(other.weight.detach().bfloat16())
    codes, scales = rounded(other.weight.detach().bfloat16())
    assert torch.equal(layer.weight.float(), codes.float())
    assert torch.equal(layer.scales, scales)
    assert places == (layer.weight.data_ptr(), layer.scales.data_ptr())


@pytest.mark.parametrize(
    "changes", [{}, {"model_type": "qwen2"}, {"model_type": "llama", "tie_word_embeddings": False}]
)
def test_the_large_matrices_of_layers_are_rounded_and_nothing_else(changes: dict[str, Any]) -> None:
    plain, decoder = tiny_decoder(1, **changes), tiny_decoder(1, **changes)
    assert not is_fp8(decoder)
    round_layers(decoder)
    assert {name.rpartition(".")[2] for name, _ in fp8_layers(decoder)} == {"qkv", "gate_up", "down"}
    assert dict(decoder.named_parameters()).keys() == dict(plain.named_parameters()).keys()
    narrow = {f"{name}.weight" for name, _ in fp8_layers(decoder)}
    for name, parameter in decoder.named_parameters():
        assert (parameter.dtype == CODE) == (name in narrow)
    tokens, positions = torch.arange(2, 32), torch.arange(30)
    with torch.no_grad():
        exact, got = (model.logits(model(tokens, positions, PackedAttention([30]))) for model in (plain, decoder))
    off = (got - exact).norm() / exact.norm()
    assert 1e-3 < off < 0.2


def test_the_shape_counts_what_there_is() -> None:
    decoder = tiny_decoder(0, dtype=torch.bfloat16, num_hidden_layers=3)
    matrices = [parameter for parameter in decoder.parameters() if parameter.dim() > 1]
    wide = sum(parameter.nbytes for parameter in matrices)
    assert fp8_bytes(decoder.shape, 2) < wide
    round_layers(decoder)
    scales = sum(layer.scales.nbytes for _, layer in fp8_layers(decoder))
    assert fp8_bytes(decoder.shape, 2) == sum(p.nbytes for p in decoder.parameters() if p.dim() > 1) + scales


def test_models_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"engine\.weights=fp8 does not know mixtures of experts"):
        round_layers(tiny_decoder(0, **mixture("olmoe")))
    with pytest.raises(ConfigError, match=r"engine\.weights=fp8 works with Freerun's own code"):
        round_layers(random_decoder("mistral"))


def test_the_fastest_tilings_are_chosen_and_parts_only_where_they_are_added() -> None:
    tilings, (kind, *_) = Tilings(), kinds(1536, 8960)
    first = tilings.whole(16, 1536, 8960)
    assert first.split == 1
    for may_split in (True, False):
        tilings.choose(kind, lambda tiling: 10 / tiling.split + tiling.outs, may_split)
        whole, parted = tilings.whole(9, 1536, 8960), tilings.in_parts(9, 1536, 8960)
        assert (whole.split, whole.outs) == (1, 16)
        assert (parted.split, parted.outs) == (1, 16)
        tilings.choose(kind, lambda tiling: 1000 / tiling.split + tiling.outs, may_split)
        assert tilings.whole(9, 1536, 8960) == whole
        assert (tilings.in_parts(9, 1536, 8960).split > 1) == may_split
    assert tilings.whole(17, 1536, 8960) != whole, "of more rows nothing is known"
