"""What a learner saves, transformers loads, and finds given tokens as likely as the learner does."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from freerun.core import FinishReason, Sample
from freerun.models.weight_files import stored_tensors
from freerun.train.config import TrainConfig
from freerun.train.learner import Learner
from tests.architectures import random_folder
from tests.tiny import tiny_folder

ROWS = ([2, 3, 4, 5, 6, 7], [9, 10, 11], [12, 2, 13, 2, 14, 2, 15, 3])


def example(row: list[int]) -> Sample:
    return Sample(row, [False] + [True] * (len(row) - 1), [0.0] * len(row), [-1] * len(row), FinishReason.STOP)


@pytest.mark.parametrize("config", [{}, {"lora": {"rank": 2}}, {"dtype": "bfloat16"}], ids=str)
@pytest.mark.parametrize("family", ["qwen3", "untied", "gemma2", "mixtral"])
def test_log_probabilities_are_the_learners(family: str, config: dict[str, Any], tmp_path: Path) -> None:
    if family in ("qwen3", "untied"):
        folder = tiny_folder(tmp_path / "model", tie_word_embeddings=family == "qwen3")
    else:
        folder = random_folder(family, tmp_path / "model")
    learner = Learner.from_folder(folder, TrainConfig.model_validate({"lr": 1e-2, **config}))
    samples = [example(row) for row in ROWS]
    for _ in range(2):
        learner.sft(samples)
    learner.save(tmp_path / "out", like=folder)
    low = config.get("dtype") == "bfloat16"
    assert {tensor.type for tensor in stored_tensors(tmp_path / "out").values()} == {"BF16" if low else "F32"}
    model, told = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto", output_loading_info=True)
    assert not any(told[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for row, scores in zip(ROWS, learner.score(samples), strict=True):
        tokens = torch.tensor(row)
        with torch.no_grad():
            logits = model.eval()(input_ids=tokens[None]).logits[0].float()
        found = logits.log_softmax(-1)[:-1].gather(1, tokens[1:, None]).squeeze(1)
        assert found.tolist() == pytest.approx(scores, abs=0.15 if low else 1e-4)
