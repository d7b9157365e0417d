"""Grouped products and the kernels between them, and steps of the trainer on mixtures. Skipped without a GPU."""

import random
from typing import Any

import pytest
import torch

from freerun.core import Batch, FinishReason, Group, Sample, Task
from freerun.models.experts import router_scores, through_experts, weights_of
from freerun.train.config import TrainConfig
from freerun.train.learner import Learner
from tests.tiny import mixture, tiny_decoder

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)


def off(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float32, 1e-5)])
@pytest.mark.parametrize(("tokens", "experts", "per_token"), [(2000, 32, 4), (5, 16, 2), (700, 6, 1), (1, 8, 3)])
def test_products_and_gradients(
    tokens: int, experts: int, per_token: int, dtype: torch.dtype, tolerance: float
) -> None:
    """Against float64; the last two experts have no tokens, and memory holds what others left."""

    def random_of(*size: int) -> torch.Tensor:
        return torch.randn(*size, device="cuda").mul_(size[-1] ** -0.5).to(dtype).requires_grad_()

    x, router = random_of(tokens, 256), random_of(experts, 256)
    gate_up, down = random_of(experts, 2 * 96, 256), random_of(experts, 256, 96)
    chosen = router_scores(x, router)[:, : experts - 2].topk(min(per_token, experts - 2), dim=-1).indices
    wanted = torch.randn(tokens, 256, device="cuda")
    poison = [torch.full((experts * 192 * 256,), float("nan"), device="cuda", dtype=dtype) for _ in range(4)]
    del poison
    parts, normed = (x, router, gate_up, down), per_token > 1
    got = through_experts(x, weights_of(router_scores(x, router), chosen, normed), chosen, gate_up, down)
    assert got.dtype == torch.float32
    grads = torch.autograd.grad((got * wanted).sum(), parts)
    exact = [part.detach().double().requires_grad_() for part in parts]
    expected = through_experts(exact[0], weights_of(router_scores(*exact[:2]), chosen, normed), chosen, *exact[2:])
    assert off(got, expected) < tolerance
    for mine, theirs in zip(grads, torch.autograd.grad((expected * wanted.double()).sum(), exact), strict=True):
        assert off(mine, theirs) < 2 * tolerance
    assert not grads[2][-2:].any()
    assert not grads[3][-2:].any()


def batch(version: int) -> Batch:
    dice = random.Random(version)

    def sample() -> Sample:
        length = dice.randrange(4, 200)
        return Sample([dice.randrange(2, 48) for _ in range(length)], [False] * 2 + [True] * (length - 2),
                      [-3.8] * length, [version] * length, FinishReason.STOP, reward=dice.random())  # fmt: skip

    return Batch(version, [Group(i, Task("", "", []), [sample() for _ in range(4)], version) for i in range(4)])


def trained(device: str, compile: bool = False, **config: Any) -> dict[str, float]:
    shape = {"hidden_size": 128, "head_dim": 64, "moe_intermediate_size": 64, "num_experts": 16}
    decoder = tiny_decoder(1, std=0.05, **(mixture("qwen3_moe") | shape)).to(device)
    settings = TrainConfig(lr=1e-3, micro_batch_tokens=700, **config)
    learner = Learner(decoder, settings.on("cuda" if device == "cuda" else "cpu", compile=compile))
    for version in range(3):
        metrics = learner.step(batch(version)).metrics
    return metrics


def test_steps_are_those_of_a_cpu_with_and_without_what_makes_them_faster() -> None:
    exact = trained("cpu")
    assert trained("cuda", dtype="float32")["loss"] == pytest.approx(exact["loss"], abs=2e-3)
    plain = trained("cuda")
    assert plain["loss"] == pytest.approx(exact["loss"], abs=0.02)
    for compiled, recompute in ((True, False), (False, True), (True, True)):
        other = trained("cuda", compile=compiled, recompute=recompute)
        assert other["loss"] == pytest.approx(plain["loss"], abs=0.01)
        assert other["grad_norm"] == pytest.approx(plain["grad_norm"], rel=0.05)
        assert other["expert_entropy"] == pytest.approx(plain["expert_entropy"], abs=0.02)
