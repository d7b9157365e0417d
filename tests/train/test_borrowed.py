"""Steps on transformers' modelling code, packed, against transformers itself, padded, by its own attention: float64."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from freerun.core import Batch
from freerun.models.checkpoint import load_decoder
from freerun.train.config import TrainConfig
from freerun.train.learner import Learner
from tests.architectures import TRAINED, random_folder
from tests.train.test_learner import random_batch

EXACT = dict.fromkeys(("gemma2", "gpt_oss"), "eager")
"""transformers' eager attention has a softmax in float32; these have no other."""


def padded_loss(model: Any, batch: Batch, clip: float = 0.2, cap: float = 5.0) -> torch.Tensor:
    """The decoupled objective on the whole batch, of one padded forward pass: for a first look at fresh tokens, where
    the proximal policy is the one that learns."""
    samples = batch.samples
    longest = max(len(sample.tokens) for sample in samples)
    tokens = torch.tensor([list(sample.tokens) + [0] * (longest - len(sample.tokens)) for sample in samples])
    logits = model(input_ids=tokens, use_cache=False).logits  # the padding is behind, where no token looks
    policy = logits.log_softmax(-1)[:, :-1].gather(2, tokens[:, 1:, None]).squeeze(2)
    total, count, row = torch.zeros((), dtype=torch.float64), 0, 0
    for group in batch.groups:
        rewards = torch.tensor([sample.reward for sample in group.samples], dtype=torch.float64)
        advantages = ((rewards - rewards.mean()) / (rewards.std(correction=1) + 1e-6)).float().double()  # as packed
        for sample, advantage in zip(group.samples, advantages, strict=True):
            trained = torch.tensor(list(sample.loss_mask)[1:]).nonzero().squeeze(1)
            new = policy[row, trained]
            behavior = torch.tensor(list(sample.behavior_logprobs), dtype=torch.float64)[trained + 1]
            moved = (new.detach() - behavior).exp()
            kept = ~(((moved > 1 + clip) & (advantage > 0)) | ((moved < 1 / (1 + clip)) & (advantage < 0)))
            ratio = (new - new.detach()).exp()
            total = total - (moved.clamp(max=cap) * ratio * advantage)[kept].sum()
            count, row = count + int(kept.sum()), row + 1
    return total / count


@pytest.mark.parametrize("family", TRAINED)
def test_two_steps_equal_transformers_padded(family: str, tmp_path: Path) -> None:
    folder = random_folder(family, tmp_path / "model", dtype=torch.float64)
    decoder = load_decoder(folder, torch.float64, backend="transformers")
    learner = Learner(decoder, TrainConfig(clip_grad=1e9, lr=1e-2, micro_batch_tokens=60))
    how: dict[str, Any] = {"attn_implementation": EXACT.get(family, "sdpa"), "experts_implementation": "eager"}
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, **how).eval()
    seen: dict[str, torch.Tensor] = {}

    def spy(*_: Any) -> None:
        seen.update({name: p.grad.clone() for name, p in decoder.named_parameters() if p.grad is not None})

    learner.policy._optimizer.register_step_pre_hook(spy)
    for version in range(2):
        batch = random_batch(version, version)
        theirs.load_state_dict({n.removeprefix("model."): p for n, p in decoder.named_parameters()}, strict=False)
        theirs.zero_grad()
        loss = padded_loss(theirs, batch)
        torch.autograd.backward(loss)
        result = learner.step(batch)
        assert abs(result.metrics["loss"] - loss.item()) < 1e-7
        expected = {f"model.{name}": p.grad for name, p in theirs.named_parameters() if p.grad is not None}
        assert {name for name, grad in expected.items() if grad.any()} <= seen.keys() <= expected.keys()
        for name, grad in seen.items():
            torch.testing.assert_close(grad, expected[name], atol=1e-7, rtol=1e-5)
