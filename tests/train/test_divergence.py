"""A policy that has diverged is said to have, and is neither published nor saved."""

from pathlib import Path

import numpy as np
import pytest
import torch

from freerun.core import TrainerError
from freerun.train.config import TrainConfig
from freerun.train.divergence import refuse_divergence
from freerun.train.learner import Learner
from freerun.train.protocol import Checkpoint
from freerun.train.ranks import ALONE
from freerun.train.worker import TrainerProcess
from freerun.weights.shm import ShmPublisher
from tests.tiny import tiny_decoder, tiny_folder
from tests.train.test_learner import random_batch


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -1e6])
def test_weights_that_nobody_can_compute_with_are_refused(odd: float) -> None:
    learner = Learner(tiny_decoder(), TrainConfig())
    result = learner.step(random_batch(0))
    refuse_divergence(learner, result.metrics, ALONE)
    assert learner.savable
    learner.decoder.embed.weight.data[3, 5] = odd
    with pytest.raises(TrainerError, match=r"has diverged at step 1 \(weights are not finite.*lower train.lr"):
        refuse_divergence(learner, result.metrics, ALONE)
    assert not learner.savable, "so that nobody saves it"


def test_a_policy_that_finds_no_sampled_token_likely_has_diverged() -> None:
    learner = Learner(tiny_decoder(), TrainConfig())
    batch = random_batch(0)
    for sample in batch.samples:
        sample.behavior_logprobs = np.full(len(sample.tokens), 1e4, np.float32)
    result = learner.step(batch)
    assert result.metrics["effective_samples"] == 0.0
    with pytest.raises(TrainerError, match="no token that was sampled is at all likely any more"):
        refuse_divergence(learner, result.metrics, ALONE)


def test_a_step_that_diverges_is_neither_published_nor_saved(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model")
    (tmp_path / "slots").mkdir()
    config = TrainConfig(lr=1e7, warmup_steps=0)
    worker = TrainerProcess(folder, config, 1.0, 0, ShmPublisher(tmp_path / "slots"))
    with pytest.raises(TrainerError, match=r"the policy has diverged at step 1 .*train\.lr, which is 1e\+07"):
        worker.step(random_batch(0))
    assert list((tmp_path / "slots").iterdir()) == []
    with pytest.raises(TrainerError, match="is gone"):
        worker.save(str(tmp_path / "out"))
    with pytest.raises(TrainerError, match="is gone"):
        worker.checkpoint(Checkpoint(1, str(tmp_path / "checkpoints"), "{}", "token"))
    assert not (tmp_path / "out").exists()
    assert torch.isfinite(worker._learner.decoder.embed.weight).all(), "they were finite, and useless"
