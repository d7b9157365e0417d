"""On-policy distillation: the gradient of the reverse KL, written out; and what a step needs."""

from math import inf

import numpy as np
import pytest
import torch

from freerun.core import FinishReason, Group, Sample, Task, TrainerError
from freerun.core.nouns import Batch
from freerun.core.packed import packed, unpacked
from freerun.train.config import TrainConfig
from freerun.train.learner import Learner
from freerun.train.losses.distill import OBJECTIVE
from freerun.train.objective import Clip, Tokens
from tests.tiny import tiny_decoder
from tests.train.test_learner import plain_logprobs, random_batch

DISTILL = {"objective": "distill", "teacher": "teacher", "clip_grad": 1e9}


def test_over_all_tokens_the_gradient_is_that_of_the_reverse_kl() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, teacher = (torch.randn(7, generator=generator, dtype=torch.float64) for _ in range(2))
    logits.requires_grad_()
    policy_V, teacher_V = logits.log_softmax(-1), teacher.log_softmax(-1)
    (wanted,) = torch.autograd.grad((policy_V.exp() * (policy_V - teacher_V)).sum(), logits, retain_graph=True)
    proximal_V = policy_V.detach()
    tokens = Tokens(
        policy_V, proximal_V, proximal_V, teacher_V - proximal_V, torch.arange(7), 7, torch.zeros(7, dtype=torch.long)
    )
    loss = OBJECTIVE.loss(tokens, Clip(1.0, inf)).loss_A
    (found,) = torch.autograd.grad((proximal_V.exp() * loss).sum(), logits)
    torch.testing.assert_close(found, wanted)


def taught(batch: Batch, seed: int = 7) -> Batch:
    teacher = tiny_decoder(seed, dtype=torch.float64)
    for sample in batch.samples:
        logprobs = np.concatenate([[0.0], plain_logprobs(teacher, sample).detach().numpy()])
        sample.teacher_logprobs = np.where(sample.loss_mask, logprobs, 0.0).astype(np.float32)
    return batch


@pytest.mark.parametrize("micro_batch_tokens", [8_192, 40])
def test_the_step_is_the_formula_token_by_token(micro_batch_tokens: int) -> None:
    batch = taught(random_batch(0))
    decoder = tiny_decoder(dtype=torch.float64)
    total, count, divergence = torch.zeros((), dtype=torch.float64), 0, 0.0
    said = [
        (s.teacher_logprobs - s.behavior_logprobs)[s.loss_mask] for s in batch.samples if s.teacher_logprobs is not None
    ]
    baseline = float(np.concatenate(said).mean(dtype=float))
    for sample in batch.samples:
        policy = plain_logprobs(decoder, sample)
        assert sample.teacher_logprobs is not None
        for place in range(1, len(sample.tokens)):
            if sample.loss_mask[place]:
                new = policy[place - 1]
                weight = min(5.0, float(torch.exp(new.detach() - sample.behavior_logprobs[place])))
                gain = float(sample.teacher_logprobs[place]) - new.item()
                total = total - weight * (gain - baseline) * (new - new.detach()).exp()
                divergence, count = divergence - gain, count + 1
    torch.autograd.backward(total / count)
    wanted = {name: p.grad for name, p in decoder.named_parameters() if p.grad is not None}

    config = TrainConfig.model_validate(DISTILL | {"micro_batch_tokens": micro_batch_tokens})
    learner, seen = Learner(tiny_decoder(dtype=torch.float64), config), {}

    def spy(*_: object) -> None:
        seen.update({name: p.grad.clone() for name, p in learner.decoder.named_parameters() if p.grad is not None})

    learner.policy._optimizer.register_step_pre_hook(spy)
    metrics = learner.step(batch).metrics
    for name, gradient in wanted.items():
        torch.testing.assert_close(seen[name], gradient, rtol=1e-6, atol=1e-9)
    assert metrics["teacher_kl"] == pytest.approx(divergence / count, rel=1e-6)
    assert metrics["signal_share"] == 1.0


def test_rewards_teach_besides_where_they_are_told_to() -> None:
    batch = taught(random_batch(1))
    without = Learner(tiny_decoder(dtype=torch.float64), TrainConfig.model_validate(DISTILL)).step(batch)
    both = TrainConfig.model_validate(DISTILL | {"advantages": "group_mean"})
    besides = Learner(tiny_decoder(dtype=torch.float64), both).step(batch)
    assert without.metrics["grad_norm"] != besides.metrics["grad_norm"]
    for sample in batch.samples:
        sample.reward = 1.0
    equal = Learner(tiny_decoder(dtype=torch.float64), both).step(batch)
    assert equal.metrics["grad_norm"] == pytest.approx(without.metrics["grad_norm"], rel=1e-9)


def test_what_no_teacher_has_read_is_refused() -> None:
    learner = Learner(tiny_decoder(), TrainConfig.model_validate(DISTILL))
    with pytest.raises(TrainerError, match="a sample that no teacher has read"):
        learner.step(random_batch(0))


def test_what_a_teacher_said_travels_with_the_sample() -> None:
    sample = Sample([1, 2, 3], [False, True, True], [0.0, -1.0, -2.0], [-1, 0, 0], FinishReason.STOP, reward=1.0)
    plain = Sample([4], [False], [0.0], [-1], FinishReason.STOP)
    sample.teacher_logprobs = np.array([0.0, -0.5, -0.25], np.float32)
    (back,) = unpacked(*packed([sample]))
    assert back.teacher_logprobs is not None
    assert back.teacher_logprobs.tolist() == [0.0, -0.5, -0.25]
    assert [one.teacher_logprobs for one in unpacked(*packed([sample, plain]))] == [None, None], "all or none"
    assert Group(0, Task("t", "", []), [sample], 0).rewards == [1.0]
