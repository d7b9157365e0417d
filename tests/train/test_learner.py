"""The step against a plain, unpacked implementation in float64."""

import random
from math import exp
from typing import Any

import pytest
import torch

from freerun.core import Batch, FinishReason, Group, Sample, Task, TrainerError
from freerun.models.attention import PackedAttention
from freerun.models.decoder import Decoder
from freerun.train.config import TrainConfig
from freerun.train.learner import Learner
from tests.tiny import tiny_decoder


def random_batch(seed: int, version: int = 0, groups: int = 4, size: int = 3) -> Batch:
    dice = random.Random(seed)

    def sample() -> Sample:
        given, sampled = dice.randrange(1, 6), dice.randrange(1, 12)
        return Sample(
            tokens=[dice.randrange(2, 48) for _ in range(given + sampled)],
            loss_mask=[False] * given + [dice.random() < 0.8 for _ in range(sampled)],
            behavior_logprobs=[0.0] * given + [-dice.uniform(2.0, 5.0) for _ in range(sampled)],
            versions=[-1] * given + [version] * sampled,
            finish=FinishReason.STOP,
            reward=float(dice.random() < 0.5),
        )

    made = [Group(10 * g, Task(f"t{g}", "", []), [sample() for _ in range(size)], version) for g in range(groups)]
    made[1].samples.pop()  # a group short of a sample
    return Batch(version, made)


def plain_logprobs(decoder: Decoder, sample: Sample) -> torch.Tensor:
    """One sequence at a time, every position, no packing."""
    tokens = torch.tensor(sample.tokens)
    logits = decoder.logits(decoder(tokens, torch.arange(len(tokens)), PackedAttention([len(tokens)])))
    return logits.log_softmax(-1)[:-1].gather(1, tokens[1:, None]).squeeze(1)


def plain_gradient(decoder: Decoder, batch: Batch, clip: float = 0.2, cap: float = 5.0) -> dict[str, torch.Tensor]:
    """The decoupled objective on the whole batch, written out token by token."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for group in batch.groups:
        rewards = torch.tensor([s.reward for s in group.samples], dtype=torch.float64)
        advantages = (rewards - rewards.mean()) / (rewards.std(correction=1) + 1e-6)
        for sample, advantage in zip(group.samples, advantages, strict=True):
            policy = plain_logprobs(decoder, sample)
            for position in range(1, len(sample.tokens)):
                if sample.loss_mask[position]:
                    new = policy[position - 1]
                    moved = exp(new.item() - sample.behavior_logprobs[position])
                    if (moved > 1.2 and advantage > 0) or (moved < 1 / 1.2 and advantage < 0):
                        continue
                    weight = min(cap, moved)
                    ratio = (new - new.detach()).exp()
                    total = total - weight * torch.minimum(
                        ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage
                    )
                    count += 1
    torch.autograd.backward(total / count)
    return {name: p.grad.clone() for name, p in decoder.named_parameters() if p.grad is not None}


def gradient_of_step(batch: Batch, **config: Any) -> dict[str, torch.Tensor]:
    """The gradient the learner hands to its optimizer."""
    learner = Learner(tiny_decoder(dtype=torch.float64), TrainConfig(clip_grad=1e9, **config))
    seen: dict[str, torch.Tensor] = {}

    def spy(*_: Any) -> None:
        seen.update({name: p.grad.clone() for name, p in learner.decoder.named_parameters() if p.grad is not None})

    learner.policy._optimizer.register_step_pre_hook(spy)
    learner.step(batch)
    return seen


@pytest.mark.parametrize("micro_batch_tokens", [1, 20, 55, 10_000])
def test_gradient_equals_the_plain_implementation(micro_batch_tokens: int) -> None:
    batch = random_batch(3)
    expected = plain_gradient(tiny_decoder(dtype=torch.float64), batch)
    got = gradient_of_step(batch, micro_batch_tokens=micro_batch_tokens)
    assert got.keys() == expected.keys()
    for name in expected:
        # the behaviour log-probabilities are float32, the rest is float64
        torch.testing.assert_close(got[name], expected[name], atol=1e-7, rtol=1e-5)


def test_minibatches_use_the_weights_before_the_step_as_proximal() -> None:
    """Two minibatches by hand: the second one's proximal log-probabilities are of the step's beginning."""
    batch = random_batch(5)
    learner = Learner(tiny_decoder(dtype=torch.float64), TrainConfig(minibatches=2, lr=1e-2))
    before = tiny_decoder(dtype=torch.float64)
    seen = []
    original = learner._rl_backward

    def spy(micro: Any, diagnostics: Any) -> Any:
        seen.append(micro)
        return original(micro, diagnostics)

    learner._rl_backward = spy  # type: ignore[method-assign]
    learner.step(batch)
    assert len(seen) == 2
    assert sum(micro.num_sequences for micro in seen) == len(batch.samples)
    reference = Learner(before, TrainConfig())
    for micro in seen:
        with torch.no_grad():
            torch.testing.assert_close(micro.proximal_A, reference.policy(micro)[0], atol=1e-9, rtol=1e-9)
    with torch.no_grad():
        moved = learner.policy(seen[1])[0] - seen[1].proximal_A
    assert moved.abs().max() > 1e-3


def test_one_minibatch_skips_a_pass_that_would_change_nothing() -> None:
    batch = random_batch(7)
    short = Learner(tiny_decoder(dtype=torch.float64), TrainConfig(lr=1e-2))
    full = Learner(tiny_decoder(dtype=torch.float64), TrainConfig(lr=1e-2))
    before, passes = full._before_the_step, []

    @torch.no_grad()
    def with_a_pass(plan: Any, batch: Any, diagnostics: Any) -> None:
        before(plan, batch, diagnostics)
        for micro in plan[0]:
            assert micro.proximal_A is None
            micro.proximal_A = full.policy(micro)[0]
            passes.append(1)

    full._before_the_step = with_a_pass  # type: ignore[method-assign]
    short.step(batch)
    full.step(batch)
    assert passes
    for a, b in zip(short.decoder.parameters(), full.decoder.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


def test_versions_warm_up_and_refusals() -> None:
    learner = Learner(tiny_decoder(), TrainConfig(lr=1e-3, warmup_steps=4))
    rates = [learner.step(random_batch(i, version=i)).metrics["lr"] for i in range(6)]
    assert rates == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3, 1e-3])
    assert learner.version == 6
    falling = TrainConfig(lr=1e-3, warmup_steps=2, decay_steps=10)
    assert [falling.lr_at(step) for step in (0, 1, 5, 9, 10, 11)] == pytest.approx([5e-4, 9e-4, 5e-4, 1e-4, 0, 0])
    with pytest.raises(TrainerError, match="a batch for version 2 came to a trainer at version 6"):
        learner.step(random_batch(0, version=2))
    unjudged = random_batch(0, version=6)
    unjudged.samples[0].reward = None
    with pytest.raises(TrainerError, match="without a reward"):
        learner.step(unjudged)


RESTRICTED: list[dict[str, Any]] = [{}, {"top_p": 0.8}, {"top_k": 8}, {"top_k": 20, "top_p": 0.5}]


def fresh_batch(**sampling: Any) -> Batch:
    """Six answers of the engine to one prompt by the weights that the trainer begins with, half of them right."""
    from freerun.engines.base import Sampling
    from freerun.engines.config import EngineConfig
    from freerun.engines.embedded.engine import EmbeddedEngine

    engine = EmbeddedEngine(tiny_decoder(4), EngineConfig())
    engine.submit("a", [5, 6, 7, 8], Sampling(max_new_tokens=20, seed=1, temperature=0.8, **sampling), 6)
    samples = []
    while engine.has_work:
        for _, c in engine.step():
            n = len(c.tokens)
            samples.append(
                Sample([5, 6, 7, 8, *c.tokens], [False] * 4 + [True] * n, [0.0] * 4 + c.logprobs, [-1] * 4 + c.versions,
                       c.finish, reward=float(c.index % 2))
            )  # fmt: skip
    return Batch(0, [Group(0, Task("t", "", []), samples, 0)])


@pytest.mark.parametrize("sampling", RESTRICTED, ids=str)
def test_engine_and_trainer_agree_at_equal_weights(sampling: dict[str, Any]) -> None:
    """The standing test: the engine's behaviour log-probabilities are the trainer's, to rounding."""
    learner = Learner(tiny_decoder(4), TrainConfig(), temperature=0.8)
    metrics = learner.step(fresh_batch(**sampling)).metrics
    assert metrics["engine_mismatch_max"] < 1e-4
    assert metrics["behavior_ratio"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["effective_samples"] == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("sampling", RESTRICTED, ids=str)
@pytest.mark.parametrize(
    "corrections",
    [{}, {"corrections": [{"name": "icepop", "low": 0.99, "high": 1.01}]},
     {"corrections": ["sequence", {"name": "geometric", "low": 0.99, "high": 1.01},
                      {"name": "distance", "most": 0.01}]}],
    ids=["as it is", "icepop", "all else"],
)  # fmt: skip
def test_fresh_tokens_are_kept_whatever_was_left_out_when_they_were_sampled(
    corrections: dict[str, Any], sampling: dict[str, Any]
) -> None:
    """What top-k and top-p leave out is no drift: no correction may take it for one."""
    learner = Learner(tiny_decoder(4), TrainConfig.model_validate(corrections), temperature=0.8)
    metrics = learner.step(fresh_batch(**sampling)).metrics
    assert metrics["kept_share"] == 1.0
    assert metrics["behavior_capped_share"] == 0.0


def test_sft_learns_what_the_mask_marks() -> None:
    learner = Learner(tiny_decoder(std=0.05), TrainConfig(lr=1e-2, weight_decay=0.0))
    example = Sample([2, 3, 4, 5, 1], [False, False, True, True, True], [0.0] * 5, [-1] * 5, FinishReason.STOP)
    losses = [learner.sft([example, example]).metrics["loss"] for _ in range(40)]
    assert losses[-1] < 0.1 * losses[0]
