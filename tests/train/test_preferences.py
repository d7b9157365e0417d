"""DPO against plain implementations in float64: one sequence at a time, and TRL's own formula."""

import random
from math import log

import numpy as np
import pytest
import torch
from torch.nn.functional import logsigmoid

from freerun.core import FinishReason, Sample
from freerun.models.own import OwnDecoder
from freerun.train.config import TrainConfig
from freerun.train.learner import Learner
from freerun.train.preferences import packed_pairs, pairs_of
from tests.tiny import tiny_decoder
from tests.train.test_learner import plain_logprobs

BETA = 0.3


def random_pairs(seed: int, count: int) -> list[Sample]:
    """Two answers each to a prompt, of all lengths; some begin alike."""
    dice = random.Random(seed)
    samples = []
    for _ in range(count):
        prompt = [dice.randrange(2, 48) for _ in range(dice.randrange(1, 9))]
        begins = [dice.randrange(2, 48) for _ in range(dice.randrange(0, 3))]
        for _ in range(2):
            answer = [*begins, *(dice.randrange(2, 48) for _ in range(dice.randrange(1, 12)))]
            mask = [False] * len(prompt) + [True] * len(answer)
            samples.append(Sample(prompt + answer, mask, [0.0] * len(mask), [-1] * len(mask), FinishReason.STOP))
    return samples


def given_references(samples: list[Sample], decoder: OwnDecoder) -> list[Sample]:
    for sample in samples:
        logprobs = plain_logprobs(decoder, sample).detach().float().numpy()
        sample.behavior_logprobs = np.where(sample.loss_mask, np.concatenate([[0.0], logprobs]), 0.0).astype(np.float32)
    return samples


def plain_loss(decoder: OwnDecoder, samples: list[Sample]) -> tuple[torch.Tensor, list[float], list[float]]:
    """As TRL's `sigmoid` loss has it: the policy's log-ratio of the two answers, less the reference's."""
    losses, chosen_rewards, rejected_rewards = [], [], []
    for chosen, rejected in zip(samples[::2], samples[1::2], strict=True):
        policy, reference = [], []
        for sample in (chosen, rejected):
            mask = torch.from_numpy(np.array(sample.loss_mask[1:]))
            policy.append(plain_logprobs(decoder, sample)[mask].sum())
            reference.append(float(np.sum(sample.behavior_logprobs, dtype=np.float64)))
        logits = (policy[0] - policy[1]) - (reference[0] - reference[1])
        losses.append(-logsigmoid(BETA * logits))
        chosen_rewards.append(BETA * (policy[0].item() - reference[0]))
        rejected_rewards.append(BETA * (policy[1].item() - reference[1]))
    return torch.stack(losses).mean(), chosen_rewards, rejected_rewards


@pytest.mark.parametrize("micro_batch_tokens", [8_192, 60, 1])
def test_loss_gradient_and_figures_are_those_of_one_sequence_at_a_time(micro_batch_tokens: int) -> None:
    samples = given_references(random_pairs(0, 7), tiny_decoder(3, dtype=torch.float64))
    plain = tiny_decoder(dtype=torch.float64)
    loss, chosen, rejected = plain_loss(plain, samples)
    torch.autograd.backward(loss)
    wanted = {name: p.grad for name, p in plain.named_parameters() if p.grad is not None}

    learner = Learner(
        tiny_decoder(dtype=torch.float64), TrainConfig(clip_grad=1e9, micro_batch_tokens=micro_batch_tokens)
    )
    seen: dict[str, torch.Tensor] = {}

    def spy(*_: object) -> None:
        seen.update({name: p.grad.clone() for name, p in learner.decoder.named_parameters() if p.grad is not None})

    learner.policy._optimizer.register_step_pre_hook(spy)
    metrics = learner.dpo(samples, BETA).metrics
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-9)
    assert metrics["chosen_reward"] == pytest.approx(np.mean(chosen), rel=1e-9)
    assert metrics["rejected_reward"] == pytest.approx(np.mean(rejected), rel=1e-9)
    assert metrics["pair_margin"] == pytest.approx(np.mean(chosen) - np.mean(rejected), rel=1e-6)
    assert metrics["pair_accuracy"] == pytest.approx(np.mean(np.array(chosen) > np.array(rejected)))
    assert 0 < metrics["pair_accuracy"] < 1, "or nothing is shown"
    assert seen.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(seen[name], gradient, rtol=1e-8, atol=1e-12)


def test_the_loss_begins_at_log_2_and_pairs_are_learned() -> None:
    learner = Learner(tiny_decoder(std=0.05), TrainConfig(lr=3e-3, weight_decay=0.0))
    samples = random_pairs(1, 6)
    for sample, scores in zip(samples, learner.score(samples), strict=True):
        logprobs = np.zeros(len(sample.tokens), np.float32)
        logprobs[np.array(sample.loss_mask)] = scores
        sample.behavior_logprobs = logprobs
    steps = [learner.dpo(samples, BETA).metrics for _ in range(30)]
    assert steps[0]["loss"] == pytest.approx(log(2), abs=1e-5)
    assert steps[0]["pair_margin"] == pytest.approx(0, abs=1e-4)
    assert steps[-1]["pair_accuracy"] == 1.0
    assert steps[-1]["loss"] < 0.3
    assert learner.version == 30


def test_pairs_are_whole_in_their_micro_batch_and_share_their_prompt() -> None:
    samples = random_pairs(2, 9)
    pairs = pairs_of(samples)
    for ranks in (1, 3, 4):
        shares = packed_pairs(pairs, 40, ranks)
        assert len({len(share) for share in shares}) == 1, "every rank has as many"
        micros = [micro for share in shares for micro in share]
        assert sum(len(micro.chosen) for micro in micros) == 9
        for micro in micros:
            assert len(micro.chosen) == len(micro.rejected)
            assert sorted(micro.chosen + micro.rejected) == list(range(2 * len(micro.chosen)))
            assert len(micro.packed.tokens_T) <= 40
    (((one,),)) = packed_pairs(pairs[:1], 10_000)
    prompt = int(np.argmax(samples[0].loss_mask))
    assert len(one.packed.tokens_T) == len(samples[0].tokens) + len(samples[1].tokens) - prompt
