"""Models that only read, and preference pairs, on a GPU: what a CPU gives in float32, to bf16."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from freerun.engines.scoring.scorer import Scorer
from freerun.models.classifier import Classifier
from freerun.train.config import TrainConfig
from freerun.train.learner import Learner
from tests.rewards.classifiers import classifier_folder
from tests.tiny import tiny_decoder, tiny_folder
from tests.train.test_preferences import random_pairs

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

SHAPE: dict[str, Any] = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
                         "intermediate_size": 256}  # fmt: skip


def test_a_teacher_scores_as_on_a_cpu_in_passes_of_any_length(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model", **SHAPE)
    rows = [torch.randint(2, 48, (length,)).tolist() for length in (400, 3, 120, 77, 1, 300)]
    wanted = Scorer(folder, "cpu").score(rows)
    for pass_tokens in (32_768, 500):
        scorer = Scorer(folder, "cuda")
        scorer._pass_tokens = pass_tokens
        off = [abs(a - b) for mine, theirs in zip(scorer.score(rows), wanted, strict=True)
               for a, b in zip(mine, theirs, strict=True)]  # fmt: skip
        assert np.mean(off) < 0.05


def test_a_reward_model_judges_as_on_a_cpu(tmp_path: Path) -> None:
    folder = classifier_folder(tmp_path / "model", labels=("good", "bad"))
    cpu = Classifier(folder, "cpu", torch.float32, 4_096)
    gpu = Classifier(folder, "cuda", torch.bfloat16, 32_768)
    rows = [
        cpu.encode([{"role": "user", "content": "ab" * n}, {"role": "assistant", "content": "c"}]) for n in range(1, 25)
    ]
    spread = np.std(wanted := np.array(cpu.logits(rows)))
    assert np.abs(np.array(gpu.logits(rows)) - wanted).max() < 0.2 * spread


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pairs_are_learned(dtype: str) -> None:
    config = TrainConfig.model_validate({"lr": 3e-3, "weight_decay": 0.0, "dtype": dtype}).on("cuda", compile=False)
    learner, samples = Learner(tiny_decoder(std=0.05, **SHAPE).to("cuda"), config), random_pairs(1, 6)
    for sample, scores in zip(samples, learner.score(samples), strict=True):
        logprobs = np.zeros(len(sample.tokens), np.float32)
        logprobs[np.array(sample.loss_mask)] = scores
        sample.behavior_logprobs = logprobs
    steps = [learner.dpo(samples, 0.3).metrics for _ in range(30)]
    assert steps[0]["loss"] == pytest.approx(np.log(2), abs=0.02)
    assert steps[-1]["pair_accuracy"] == 1.0
