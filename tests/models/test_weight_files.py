"""Weights checked by their headers: what a model of a shape needs, and every way in which files can lack it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from freerun.core import ConfigError
from freerun.models.checkpoint import load_decoder, save_decoder, to_hugging_face
from freerun.models.own import OwnDecoder
from freerun.models.shape import read_shape, shape_of
from freerun.models.weight_files import INDEX, SINGLE, check_weights, wanted_tensors
from tests.tiny import TINY, tiny_decoder


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": False},
        {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
        {"model_type": "qwen2", "num_key_value_heads": 4},
    ],
)
def test_it_wants_what_the_decoder_loads(changes: dict[str, Any], tmp_path: Path) -> None:
    shape = shape_of(TINY | changes)
    with torch.device("meta"):
        tensors = dict(OwnDecoder(shape).named_parameters())
    loaded = {name: tuple(tensor.shape) for name, tensor in to_hugging_face(tensors, shape)}
    assert wanted_tensors(shape) == loaded
    save_decoder(tiny_decoder(**changes), tmp_path / "model")
    assert check_weights(tmp_path / "model", read_shape(tmp_path / "model")) == []


def changed(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def change_file(folder: Path) -> None:
        tensors = load_file(folder / SINGLE)
        change(tensors)
        save_file(tensors, folder / SINGLE, metadata={"format": "pt"})

    return change_file


def cut(size: int) -> Callable[[Path], object]:
    return lambda folder: (folder / SINGLE).write_bytes((folder / SINGLE).read_bytes()[:size])


def index(where: object) -> Callable[[Path], object]:
    return lambda folder: (folder / INDEX).write_text(json.dumps(where))


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda folder: (folder / SINGLE).unlink(), "has no model.safetensors"),
        (lambda folder: (folder / SINGLE).rename(folder / "pytorch_model.bin"), "(it has pytorch_model.bin)"),
        (cut(0), "model.safetensors (0 bytes) is no safetensors file"),
        (cut(100), "is cut off after 100 bytes, in its header"),
        (cut(20_000), "is cut off: it has 20,000 of "),
        (lambda folder: (folder / SINGLE).write_bytes(b"\xff" * 999), "is no safetensors file"),
        (lambda folder: (folder / SINGLE).write_text("version https://git-lfs"), "git lfs pull"),
        (lambda folder: (folder / SINGLE).write_bytes((9).to_bytes(8, "little") + b'{"a": 12}'), "damaged header"),
        (lambda folder: (folder / SINGLE).write_bytes((4).to_bytes(8, "little") + b"nope"), "is damaged"),
        (changed(lambda tensors: tensors.pop(NORM)), f"holds no tensor {NORM}, which its config.json asks for"),
        (changed(lambda tensors: tensors.update({NORM: tensors[NORM][1:]})), "has shape [31], and config.json asks"),
        (changed(lambda tensors: tensors.update({NORM: tensors[NORM].int()})), "is of type I32"),
        (index({"weight_map": {NORM: "model-00002-of-00002.safetensors"}}), "lacks model-00002-of-00002.safetensors"),
        (index({}), "has no weight_map"),
        (lambda folder: (folder / INDEX).write_text("{"), "is damaged"),
    ],
)
def test_what_is_wrong_is_one_line(spoil: Callable[[Path], object], says: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_decoder(tiny_decoder(), folder)
    spoil(folder)
    for read in (lambda: check_weights(folder, read_shape(folder)), lambda: load_decoder(folder)):
        with pytest.raises(ConfigError) as caught:
            read()
        assert "\n" not in str(caught.value)
        if read.__code__.co_names[0] == "check_weights":
            assert says in str(caught.value)


def test_an_adapter_alone_is_told_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "acme/base"}))
    with pytest.raises(ConfigError, match="holds an adapter alone: merge it into acme/base first, by peft's merge"):
        read_shape(tmp_path)


def test_tensors_that_nobody_asked_for_are_named(tmp_path: Path) -> None:
    save_decoder(tiny_decoder(), tmp_path / "model")
    changed(lambda tensors: tensors.update({"extra.bias": torch.zeros(3)}))(tmp_path / "model")
    assert check_weights(tmp_path / "model", read_shape(tmp_path / "model")) == ["extra.bias"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "is not JSON"),
        ("", "is not JSON"),
        ("[1]", "holds a list"),
        (json.dumps({"model_type": "gpt9"}), "model_type 'gpt9' is not known"),
        (json.dumps({"model_type": None}), "model_type None is not known"),
        (json.dumps(TINY | {"hidden_size": None}), "hidden_size is missing"),
        (json.dumps(TINY | {"hidden_size": "big"}), "hidden_size must be a whole number"),
        (json.dumps(TINY | {"num_attention_heads": 0}), "num_attention_heads must be a whole number"),
        (json.dumps(TINY | {"rope_scaling": [1]}), "rope_scaling must be"),
        (json.dumps(TINY | {"eos_token_id": "<eos>"}), "eos_token_id must be"),
    ],
)
def test_config_json(content: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError) as caught:
        read_shape(tmp_path)
    assert says in str(caught.value)
    assert str(tmp_path / "config.json") in str(caught.value)
