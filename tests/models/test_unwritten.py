"""A model without files of weights: everybody makes up the same."""

from pathlib import Path

import torch

from freerun.models.checkpoint import decoder_to_share, load_decoder, read_rows, save_decoder
from freerun.models.shape import read_shape, shape_of
from freerun.models.unwritten import is_unwritten, write_unwritten
from tests.tiny import TINY


def test_all_of_its_loaders_have_the_same_weights(tmp_path: Path) -> None:
    write_unwritten(shape_of(TINY | {"model_type": "qwen2"}), tmp_path / "model")
    assert [file.name for file in (tmp_path / "model").iterdir()] == ["config.json"]
    one, other = load_decoder(tmp_path / "model"), load_decoder(tmp_path / "model", torch.bfloat16)
    for (name, wide), narrow in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(wide, narrow.float()), name
        share = read_rows(tmp_path / "model", name, one, wide.shape, range(3, 9))
        assert torch.equal(share, narrow[3:9])
    weights = dict(one.named_parameters())
    assert weights["layers.0.qkv.bias"].eq(0).all()
    assert weights["layers.0.mlp_norm.weight"].eq(1).all()
    assert not torch.equal(weights["layers.0.down.weight"], weights["layers.1.down.weight"])
    assert decoder_to_share(tmp_path / "model").embed.weight.is_meta


def test_saved_it_is_an_ordinary_folder(tmp_path: Path) -> None:
    write_unwritten(shape_of(TINY), tmp_path / "model")
    made = load_decoder(tmp_path / "model")
    torch.nn.init.ones_(made.embed.weight)
    save_decoder(made, tmp_path / "saved")
    assert not is_unwritten(read_shape(tmp_path / "saved"))
    assert load_decoder(tmp_path / "saved").embed.weight.eq(1).all()
