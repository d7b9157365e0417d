"""An optimizer whose state is in the machine's memory: the same steps, and a plan that counts on them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from freerun.models.shape import shape_of
from freerun.train.config import ResolvedTrainConfig, TrainConfig
from freerun.train.needs import bytes_per_token, offloaded_bytes, standing_bytes
from freerun.train.optimizer import OffloadedAdamW
from freerun.train.ranks import ALONE
from freerun.train.worker import TrainerProcess
from freerun.weights.shm import ShmPublisher
from tests.tiny import TINY, tiny_folder
from tests.train.test_learner import random_batch
from tests.train.test_ranks import CRITIC, assert_close, lesson

SHAPE = shape_of(TINY | {"hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 64})


@pytest.mark.parametrize("config", [{"weight_decay": 0.3}, CRITIC, {"lora": {"rank": 3}}])
def test_it_steps_as_the_usual_one(config: dict[str, Any]) -> None:
    usual = lesson(config, {}, ALONE, torch.float64)
    offloaded = lesson({**config, "optimizer_state": "offload"}, {}, ALONE, torch.float64)
    assert_close(usual["tensors"], offloaded["tensors"], 1e-12)


def test_weights_elsewhere_are_stepped_in_the_machines_memory() -> None:
    """As a GPU's are, in another type of tensor that has to be brought over and back."""
    here, there = (torch.nn.Parameter(torch.linspace(-1, 1, 6)) for _ in range(2))
    brought: list[torch.Tensor] = []

    class Elsewhere(torch.nn.Parameter):
        def cpu(self, *_: Any) -> torch.Tensor:
            brought.append(self)
            return self.detach().clone()

    away = Elsewhere(there.detach().clone())
    optimizers = [torch.optim.AdamW([here], lr=0.1), OffloadedAdamW([away], lr=0.1)]
    for step in range(3):
        here.grad, away.grad = (torch.arange(6.0) - step for _ in range(2))
        for optimizer in optimizers:
            optimizer.step()
    assert len(brought) == 3
    torch.testing.assert_close(away.detach(), here.detach())
    assert not torch.equal(away, there)


def test_on_a_cpu_the_run_is_told_once_that_it_spares_nothing(tmp_path: Path) -> None:
    train = TrainConfig(optimizer_state="offload", lr=1e-3)
    trainer = TrainerProcess(tiny_folder(tmp_path / "model"), train, 1.0, 0, ShmPublisher(tmp_path))
    told = [trainer.step(random_batch(version, version)).warnings for version in range(2)]
    said = [
        [warning for warning in warnings if "optimizer_state=offload spares nothing here" in warning]
        for warnings in told
    ]
    assert list(map(len, said)) == [1, 0]


def on_gpu(**train: Any) -> ResolvedTrainConfig:
    return TrainConfig(**train).on("cuda")


def test_the_plan_counts_moments_where_they_are() -> None:
    """A weight takes 2 + 4 + 4 + 8 bytes to learn; the moments are the last 8."""
    usual, offloaded = on_gpu(ranks=4), on_gpu(ranks=4, optimizer_state="offload")
    moments = 8 * SHAPE.num_parameters // 4
    spared = standing_bytes(SHAPE, usual) - standing_bytes(SHAPE, offloaded)
    assert spared == pytest.approx(moments, abs=8)
    assert offloaded_bytes(SHAPE, offloaded) == moments
    assert offloaded_bytes(SHAPE, usual) == 0


def test_the_plan_counts_copies_and_parts() -> None:
    everywhere, copies = on_gpu(ranks=4), on_gpu(ranks=4, shard="machine")
    more = standing_bytes(SHAPE, copies, machines=2) - standing_bytes(SHAPE, everywhere, machines=2)
    assert more == pytest.approx(18 * SHAPE.num_parameters / 4, abs=8)
    whole, halves = bytes_per_token(SHAPE, on_gpu(ranks=4)), bytes_per_token(SHAPE, on_gpu(ranks=4, context_parallel=2))
    quarters = bytes_per_token(SHAPE, on_gpu(ranks=4, context_parallel=4))
    assert halves == pytest.approx(whole / 2, abs=1)
    assert whole / 4 < quarters < halves, "two key/value heads are four there"
