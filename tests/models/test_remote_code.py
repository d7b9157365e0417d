"""Folders that bring code of their own: refused, unless it is trusted; and then as any other model."""

import json
import os
import tempfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, dynamic_module_utils

from freerun.core import ConfigError
from freerun.models.attention import PackedAttention
from freerun.models.checkpoint import load_decoder, save_decoder
from freerun.models.config import ModelConfig
from freerun.models.shape import read_shape
from freerun.models.weight_files import check_weights
from tests.architectures import random_folder

MODULES = tempfile.mkdtemp()
"""Where transformers copies such code to, and imports it from: one place for all of a process."""
os.environ["HF_MODULES_CACHE"] = dynamic_module_utils.HF_MODULES_CACHE = MODULES
RAN = "ran"
"""A file that the code writes into its model's folder where it is run."""
CONFIGURATION = """
from transformers import LlamaConfig
open({ran!r}, "w").close()

class SquareConfig(LlamaConfig):
    model_type = "square"
"""
MODELLING = """
from transformers import LlamaForCausalLM
from .configuration_square import SquareConfig

class SquareForCausalLM(LlamaForCausalLM):
    config_class = SquareConfig
"""


def remote_folder(folder: Path) -> Path:
    """A Llama by another name."""
    random_folder("llama", folder)
    raw = json.loads((folder / "config.json").read_text())
    raw |= {
        "model_type": "square", "architectures": ["SquareForCausalLM"],
        "auto_map": {
            "AutoConfig": "configuration_square.SquareConfig",
            "AutoModelForCausalLM": "modeling_square.SquareForCausalLM",
        },
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(raw))
    (folder / "configuration_square.py").write_text(CONFIGURATION.format(ran=str(folder / RAN)))
    (folder / "modeling_square.py").write_text(MODELLING)
    return folder


def test_it_is_refused_unless_it_is_trusted(tmp_path: Path) -> None:
    folder = remote_folder(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"set model\.trust_remote_code=true if you trust it") as refused:
        read_shape(folder, ModelConfig(path=str(folder)).code)
    assert "\n" not in str(refused.value)
    with pytest.raises(ConfigError, match="trust_remote_code"):
        load_decoder(folder)
    assert not (folder / RAN).exists()
    read_shape(folder, "remote")
    assert (folder / RAN).exists()


def test_trusted_it_is_a_model_like_any_other(tmp_path: Path) -> None:
    folder = remote_folder(tmp_path / "model")
    code = ModelConfig(path=str(folder), trust_remote_code=True).code
    shape = read_shape(folder, code)
    assert (shape.family, shape.backend, shape.remote) == ("square", "transformers", str(folder))
    assert check_weights(folder, shape) == []
    decoder = load_decoder(folder, backend=code)
    save_decoder(decoder, tmp_path / "saved", like=folder)
    first, second = (load_file(where / "model.safetensors") for where in (folder, tmp_path / "saved"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    tokens = torch.arange(2, 20)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", trust_remote_code=True)
    with torch.no_grad():
        mine = decoder.logits(decoder(tokens, torch.arange(18), PackedAttention([18])))
        theirs = again(input_ids=tokens[None]).logits[0]
    torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


def test_what_others_have_code_for_runs_by_theirs(tmp_path: Path) -> None:
    """Trusted or not, a folder's copy of a known architecture is not run."""
    for family, backend in (("llama", "own"), ("gemma2", "transformers")):
        folder = random_folder(family, tmp_path / family)
        raw = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(raw | {"auto_map": {"AutoModelForCausalLM": "evil.Evil"}}))
        shape = read_shape(folder, "remote")
        assert (shape.backend, shape.remote) == (backend, None)
        load_decoder(folder, backend="remote")


def test_code_that_fails_is_told_in_a_line(tmp_path: Path) -> None:
    folder = remote_folder(tmp_path / "model")
    (folder / "configuration_square.py").write_text("raise ValueError('no\\ngood')\n")
    with pytest.raises(
        ConfigError, match="the folder's own code cannot read this square configuration: no good"
    ) as told:
        read_shape(folder, "remote")
    assert "\n" not in str(told.value)
