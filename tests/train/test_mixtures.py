"""Steps on mixtures of experts by our own code, packed, against transformers', padded: float64."""

from pathlib import Path
from typing import Any

import pytest
import torch

from freerun.models.checkpoint import hugging_face_names, load_decoder, save_decoder
from freerun.models.shape import MIXTURES as FAMILIES
from freerun.models.shape import Shape
from freerun.train.config import TrainConfig
from freerun.train.learner import Learner
from freerun.train.ranks import ALONE, Ranks
from tests.architectures import random_folder
from tests.models.test_experts import precise
from tests.tiny import MIXTURES, mixture, tiny_decoder, tiny_folder
from tests.train.processes import together
from tests.train.test_borrowed import padded_loss
from tests.train.test_learner import random_batch
from tests.train.test_ranks import assert_close


def theirs_of(name: str, grads: dict[str, torch.Tensor], shape: Shape) -> torch.Tensor:
    """The gradient of one of our tensors, from those that transformers has in memory."""
    layer = ".".join(name.split(".")[:2])
    fused = {
        f"{layer}.expert_gate_up.weight": "mlp.experts.gate_up_proj",
        f"{layer}.expert_down.weight": "mlp.experts.down_proj",
        f"{layer}.router.weight": "mlp.gate.weight",
    }
    if name in fused:
        return grads[f"model.{layer}.{fused[name]}"].flatten(0, -2)
    return torch.cat([grads[part] for part in hugging_face_names(name, shape)])


@pytest.mark.parametrize("family", FAMILIES)
def test_two_steps_equal_transformers_padded(family: str, tmp_path: Path) -> None:
    folder = random_folder(family, tmp_path / "model", dtype=torch.float64, **MIXTURES[family])
    decoder = load_decoder(folder, torch.float64, backend="own")
    learner = Learner(decoder, TrainConfig(clip_grad=1e9, lr=1e-2, micro_batch_tokens=60))
    seen: dict[str, torch.Tensor] = {}

    def spy(*_: Any) -> None:
        seen.update({name: p.grad.clone() for name, p in decoder.named_parameters() if p.grad is not None})

    learner.policy._optimizer.register_step_pre_hook(spy)
    for version in range(2):
        batch = random_batch(version, version)
        save_decoder(decoder, tmp_path / f"{version}", like=folder)
        theirs = precise(tmp_path / f"{version}")
        loss = padded_loss(theirs, batch)
        torch.autograd.backward(loss)
        result = learner.step(batch)
        assert abs(result.metrics["loss"] - loss.item()) < 1e-7
        grads = {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}
        assert len(seen) == len(list(decoder.named_parameters()))
        for name, grad in seen.items():
            torch.testing.assert_close(grad, theirs_of(name, grads, decoder.shape), atol=1e-7, rtol=1e-5)


def learned(folder: Path, ranks: Ranks = ALONE, **config: Any) -> dict[str, torch.Tensor]:
    train = TrainConfig.model_validate({"lr": 1e-2, "micro_batch_tokens": 40, **config})
    learner = Learner.from_folder(folder, train, ranks=ranks)
    for version in range(2):
        learner.step(random_batch(version, version))
    return learner.policy.tensors()


LESSONS: dict[str, dict[str, Any]] = {
    "in shares": {},
    "recomputed": {"recompute": True, "minibatches": 2},
    "adapted": {"lora": {"rank": 2}},
}


def rank(number: int, folder: Path) -> None:
    torch.set_num_threads(1)
    ranks = Ranks.join(number, 2, f"file://{folder}/rendezvous", "cpu")
    found = {name: learned(folder / "model", ranks, **config) for name, config in LESSONS.items()}
    halves = Ranks(number, 2, context=2)
    found["in halves"] = learned(folder / "model", halves)
    if ranks.is_first:
        torch.save(found, folder / "found")
    torch.distributed.destroy_process_group()


def test_two_ranks_learn_what_one_does(tmp_path: Path) -> None:
    """Each reads its rows of the experts' matrices, wherever they are cut."""
    tiny_folder(tmp_path / "model", **mixture("qwen3_moe"))
    together(rank, 2, tmp_path)
    found = torch.load(tmp_path / "found")
    for name, weights in found.items():
        assert_close(weights, learned(tmp_path / "model", **LESSONS.get(name, {})), atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_adapter_is_of_the_attention_alone(family: str) -> None:
    decoder = tiny_decoder(dtype=torch.float64, **mixture(family))
    learner = Learner(decoder, TrainConfig.model_validate({"lora": {"rank": 2}, "lr": 1e-2}))
    before = {name: tensor.clone() for name, tensor in learner.policy.tensors().items()}
    learner.step(random_batch(0))
    changed = {name.split(".")[2] for name, t in learner.policy.tensors().items() if not torch.equal(t, before[name])}
    assert changed == {"qkv", "out"} | ({"gate_up", "down"} if family == "qwen3_moe" else set())
