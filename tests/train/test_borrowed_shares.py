"""Ranks of models that transformers computes read their share of the folder, and have what one rank has that loads it
whole."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from freerun.models.checkpoint import load_decoder
from freerun.train import shares
from freerun.train.config import LoraConfig, TrainConfig
from freerun.train.learner import Learner
from freerun.train.ranks import Ranks, full_tensor
from tests.architectures import random_folder
from tests.train.processes import together
from tests.train.test_layouts import memory, refusal
from tests.train.test_learner import random_batch
from tests.train.test_ranks import assert_close

SHARED = (
    *("gemma2", "gemma3_text", "phi3", "glm4", "cohere2", "starcoder2", "stablelm", "gpt_neox", "gpt2", "opt"),
    *("deepseek_v3", "gpt_oss", "mixtral", "glm4_moe"),
)
LARGE: dict[str, Any] = {
    "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6, "vocab_size": 8192, "head_dim": 64,
    "num_attention_heads": 8, "num_key_value_heads": 4,
}  # fmt: skip
TRAIN = TrainConfig(lr=1e-2, micro_batch_tokens=60)
OTHERS = {
    "critic": ("gemma2", TrainConfig(lr=1e-2, micro_batch_tokens=60, objective="ppo", advantages="gae")),
    "adapter": ("mixtral", TrainConfig(lr=1e-2, micro_batch_tokens=60, lora=LoraConfig(rank=2))),
    "odd": ("odd", TRAIN),
}
"""Two models from one folder; below an adapter; a folder that is loaded whole."""


def loaded(folder: Path, ranks: Ranks, train: TrainConfig = TRAIN) -> dict[str, Any]:
    """Weights and buffers of a learner of that folder, and the weights after a step."""
    learner = Learner.from_folder(folder, train, ranks=ranks, backend="transformers")
    decoder = learner.decoder
    found = {
        "weights": {name: full_tensor(p.detach()).clone() for name, p in decoder.named_parameters()},
        "buffers": {name: buffer.clone() for name, buffer in decoder.named_buffers()},
        "routes": decoder.routes,
        "notes": list(decoder.notes),
        "scores": learner.score(random_batch(3).samples),
    }
    learner.step(random_batch(0))
    return found | {"stepped": learner.policy.tensors()}


def peak(folder: Path, ranks: Ranks) -> int:
    """What loading takes of this process's memory at most, before a pass checks what was loaded."""
    check, shares._check = shares._check, lambda module: None
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
    before = memory("VmRSS")
    learner = Learner.from_folder(folder, TRAIN, ranks=ranks, backend="transformers")
    shares._check = check
    assert not learner.decoder.notes
    return memory("VmHWM") - before


def rank(number: int, folder: Path) -> None:
    torch.set_num_threads(1)
    ranks = Ranks.join(number, 2, f"file://{folder}/rendezvous", "cpu")
    results: dict[str, Any] = {family: loaded(folder / family, ranks) for family in SHARED}
    results |= {name: loaded(folder / family, ranks, train) for name, (family, train) in OTHERS.items()}
    results["refused"] = refusal(lambda: Learner.from_folder(folder / "bloom", TRAIN, ranks=ranks))
    results["peaks"] = {name: ranks.everyones(peak(folder / name, ranks)) for name in ("large", "large experts")}
    if ranks.is_first:
        torch.save(results, folder / "results")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("pair")
    for family in (*SHARED, "bloom"):
        random_folder(family, folder / family)
    random_folder("gemma2", folder / "large", **LARGE)
    random_folder("mixtral", folder / "large experts", **LARGE | {"num_hidden_layers": 2})
    turn_experts(random_folder("mixtral", folder / "odd"))
    together(rank, 2, folder)
    return folder, torch.load(folder / "results", weights_only=False)


def turn_experts(folder: Path) -> None:
    """Its experts in one tensor, as transformers has them in memory: not by the rule for its architecture."""
    tensors = load_file(folder / "model.safetensors")
    for layer in range(2):
        experts = f"model.layers.{layer}.block_sparse_moe.experts."
        down = [tensors.pop(f"{experts}{one}.w2.weight") for one in range(8)]
        tensors[f"model.layers.{layer}.mlp.experts.down_proj"] = torch.stack(down)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("family", SHARED)
def test_two_ranks_have_what_is_loaded_whole(pair: tuple[Path, dict[str, Any]], family: str) -> None:
    folder, results = pair
    two = results[family]
    assert two["notes"] == []
    decoder = load_decoder(folder / family, backend="transformers")
    for kind, tensors in (("weights", decoder.named_parameters()), ("buffers", decoder.named_buffers())):
        named = dict(tensors)
        assert two[kind].keys() == named.keys()
        assert all(torch.equal(two[kind][name], tensor) for name, tensor in named.items())
        assert all(two[kind][name].dtype == tensor.dtype for name, tensor in named.items())
    assert two["routes"] == decoder.routes
    one = Learner(decoder, TRAIN)
    for row, same in zip(one.score(random_batch(3).samples), two["scores"], strict=True):
        assert same == pytest.approx(row, abs=1e-4)


@pytest.mark.parametrize("name", OTHERS)
def test_they_learn_what_one_rank_does(pair: tuple[Path, dict[str, Any]], name: str) -> None:
    folder, results = pair
    family, train = OTHERS[name]
    assert len(results[name]["notes"]) == (name == "odd")
    learner = Learner(load_decoder(folder / family, backend="transformers"), train)
    learner.step(random_batch(0))
    assert_close(learner.policy.tensors(), results[name]["stepped"], 1e-3)


def test_what_cannot_be_read_row_by_row_is_named(pair: tuple[Path, dict[str, Any]]) -> None:
    (said,) = pair[1]["odd"]["notes"]
    assert said.startswith(
        "each rank loads the whole mixtral model before it keeps its share: its folder has model.layers"
    )
    assert said.endswith("mlp.experts.down_proj in a form that cannot be read row by row")


def test_what_cannot_be_packed_is_refused_by_all_ranks(pair: tuple[Path, dict[str, Any]]) -> None:
    assert pair[1]["refused"].startswith("bloom models cannot be trained packed: a sequence in a row changes")


@pytest.mark.parametrize("name", ["large", "large experts"])
def test_no_rank_loads_more_than_its_share_and_a_tensor(pair: tuple[Path, dict[str, Any]], name: str) -> None:
    folder, results = pair
    sizes = [parameter.nbytes for parameter in load_decoder(folder / name, backend="transformers").parameters()]
    assert sum(sizes) > 100e6
    assert max(results["peaks"][name]) < sum(sizes) / 2 + max(sizes) + 16e6, "a share, a tensor, odds and ends"
