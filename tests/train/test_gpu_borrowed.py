"""Training by transformers' code on a GPU: the same with compiled layers as without, and as on a CPU."""

from typing import Any

import pytest
import torch

from freerun.train.config import TrainConfig
from freerun.train.learner import Learner
from tests.architectures import random_decoder
from tests.train.test_gpu_trainer import batch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

SIZES = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 64, "num_hidden_layers": 4,
         "max_position_embeddings": 4096}  # fmt: skip


def trained(family: str, device: Any, compile: bool, **train: Any) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Where three steps lead, and what the last one reported."""
    decoder: Any = random_decoder(family, **SIZES).to(device)  # type: ignore[arg-type]
    config = TrainConfig(lr=1e-3, micro_batch_tokens=700, **train).on(device, compile=compile)
    learner = Learner(decoder, config)
    for version in range(3):
        result = learner.step(batch(version))
    assert learner.decoder.notes == []
    return {name: p.detach().cpu().clone() for name, p in learner.policy._owner.named_parameters()}, result.metrics


@pytest.mark.parametrize("family", ["qwen2", "gemma2", "glm4", "cohere2", "gpt_neox", "mixtral", "gpt_oss"])
def test_compiled_it_is_the_same(family: str) -> None:
    _, exact = trained(family, "cpu", False)
    plain, usual = trained(family, "cuda", False, dtype="float32")
    ours, metrics = trained(family, "cuda", True, dtype="float32")
    assert usual["loss"] == pytest.approx(exact["loss"], abs=1e-3)
    assert metrics["loss"] == pytest.approx(usual["loss"], abs=1e-4)
    start = dict(random_decoder(family, **SIZES).named_parameters())  # type: ignore[arg-type]
    begun = {f"decoder.{name}": p.detach() for name, p in start.items()}
    moved = sum((plain[name] - begun[name]).norm() ** 2 for name in begun) ** 0.5
    assert sum((ours[name] - plain[name]).norm() ** 2 for name in begun) ** 0.5 < 0.05 * moved


@pytest.mark.parametrize("family", ["qwen2", "gemma2", "mixtral"])
def test_in_bf16_it_learns_as_it_is_written(family: str) -> None:
    _, usual = trained(family, "cuda", False)
    for recompute in (False, True):
        _, metrics = trained(family, "cuda", True, recompute=recompute)
        assert metrics["loss"] == pytest.approx(usual["loss"], abs=0.02)
        assert metrics["grad_norm"] == pytest.approx(usual["grad_norm"], rel=0.1)
