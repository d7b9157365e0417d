"""The engine's choice of experts, trained on: against passes of single samples that are told the same choice."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from freerun.core import Batch, Sample
from freerun.core.packed import packed, unpacked
from freerun.models.attention import PackedAttention
from freerun.models.decoder import Decoder, likeliest
from freerun.models.routes import RouteLayout
from freerun.models.shape import MIXTURES as FAMILIES
from freerun.train.config import TrainConfig
from freerun.train.learner import Learner
from freerun.train.packing import pack, untrained
from freerun.train.ranks import Ranks
from freerun.train.routing import Routing
from tests.tiny import mixture, tiny_decoder
from tests.train import test_learner
from tests.train.processes import together
from tests.train.test_learner import plain_gradient, random_batch
from tests.train.test_ranks import assert_close


def routed_batch(seed: int, decoder: Decoder, version: int = 0) -> Batch:
    """Groups whose members share a prompt, and what it went through; the last token's experts are not known."""
    dice, layout = np.random.default_rng(seed), decoder.routes
    assert layout
    batch = random_batch(seed, version)
    for group in batch.groups:
        prompt = [int(token) for token in dice.integers(2, 48, 9)]
        prompt_routes = chosen(dice, layout, 9)
        group.samples = [routed(sample, prompt, prompt_routes, dice, layout) for sample in group.samples]
    return batch


def chosen(dice: np.random.Generator, layout: RouteLayout, tokens: int) -> Any:
    picked = dice.random((tokens, layout.layers, layout.experts)).argsort(-1)[..., : layout.per_token]
    return layout.encoded(picked)


def routed(sample: Sample, prompt: list[int], routes: Any, dice: np.random.Generator, layout: RouteLayout) -> Sample:
    own, known = len(sample.tokens), len(prompt)
    return Sample(
        [*prompt, *sample.tokens],
        [*[False] * known, *sample.loss_mask],
        [*[0.0] * known, *sample.behavior_logprobs],
        [*[-1] * known, *sample.versions],
        sample.finish,
        reward=sample.reward,
        routes=np.concatenate([routes, chosen(dice, layout, own - 1), layout.unknown(1)]),
    )


def told_logprobs(decoder: Decoder, sample: Sample) -> Tensor:
    tokens, layout = torch.tensor(sample.tokens), decoder.routes
    assert layout
    assert sample.routes is not None
    numbers = torch.from_numpy(layout.decoded(sample.routes).astype(np.int64))

    def choose(layer: int, scores_TE: Tensor, k: int) -> Tensor:
        live, told = likeliest(layer, scores_TE, k), numbers[:, layer]
        return torch.where(told < layout.experts, told, live)

    hidden = decoder(tokens, torch.arange(len(tokens)), PackedAttention([len(tokens)]), choose)
    return decoder.logits(hidden).log_softmax(-1)[:-1].gather(1, tokens[1:, None]).squeeze(1)


def gradient_of(learner: Learner, batch: Batch) -> dict[str, Tensor]:
    seen: dict[str, Tensor] = {}
    names = [name for name, _ in learner.decoder.named_parameters()]

    def spy(*_: Any) -> None:
        seen.update((name, p.grad.clone()) for name, p in learner.decoder.named_parameters() if p.grad is not None)

    learner.policy._optimizer.register_step_pre_hook(spy)
    learner.step(batch)
    assert list(seen) == names
    return seen


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_those_of_the_engines_choice(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed, with shared prompts once; each choice is weighed by the present router, which learns by that."""
    monkeypatch.setattr(test_learner, "plain_logprobs", told_logprobs)
    decoder = tiny_decoder(4, dtype=torch.float64, **mixture(family))
    batch = routed_batch(1, decoder)
    expected = plain_gradient(tiny_decoder(4, dtype=torch.float64, **mixture(family)), batch)
    learner = Learner(decoder, TrainConfig(clip_grad=1e9, micro_batch_tokens=60))
    found = gradient_of(learner, batch)
    for name, grad in found.items():
        assert grad.any()
        torch.testing.assert_close(grad, expected[name], atol=1e-7, rtol=1e-5)


def test_it_can_be_turned_off() -> None:
    batch = routed_batch(1, tiny_decoder(4, **mixture("mixtral")))
    bare = random_batch(1)
    for group, plain in zip(batch.groups, bare.groups, strict=True):
        plain.samples = [untrained(sample) for sample in group.samples]
        for sample, given in zip(plain.samples, group.samples, strict=True):
            sample.loss_mask, sample.routes = given.loss_mask, None

    def learned(batch: Batch, **config: Any) -> tuple[dict[str, Tensor], dict[str, float]]:
        learner = Learner(tiny_decoder(4, dtype=torch.float64, **mixture("mixtral")), TrainConfig(lr=1e-2, **config))
        metrics = learner.step(batch).metrics
        return learner.policy.tensors(), metrics

    without, off = learned(batch, replay_router=False)
    unknown, nobody = learned(bare)
    assert_close(without, unknown, atol=1e-12)
    assert off["router_replayed_share"] == nobody["router_replayed_share"] == 0
    replayed, on = learned(batch)
    assert any((replayed[name] - without[name]).abs().max() > 1e-4 for name in without)
    tokens = sum(len(sample.tokens) for sample in batch.samples)
    shared = sum(9 * (len(group.samples) - 1) for group in batch.groups)
    assert on["router_replayed_share"] == pytest.approx(1 - len(batch.samples) / (tokens - shared), abs=1e-6)
    assert 0.2 < on["router_flips"] < 0.9, "they were drawn"
    assert 1 <= on["expert_load_max"] <= 4
    assert 0.5 < on["expert_entropy"] <= 1
    assert 0 <= on["expert_unused_share"] < 0.5


def rank(number: int, folder: Any) -> None:
    torch.set_num_threads(1)
    Ranks.join(number, 2, f"file://{folder}/rendezvous", "cpu")
    found = {}
    for how, ranks in (("shares", Ranks(number, 2)), ("halves", Ranks(number, 2, context=2))):
        decoder = tiny_decoder(4, **mixture("qwen3_moe"))
        learner = Learner(decoder, TrainConfig(micro_batch_tokens=60, lr=1e-2), ranks=ranks)
        metrics = learner.step(routed_batch(1, decoder)).metrics
        found[how] = learner.policy.tensors(), metrics
    if number == 0:
        torch.save(found, folder / "found")
    torch.distributed.destroy_process_group()


def test_two_ranks_replay_what_one_does(tmp_path: Any) -> None:
    """In shares of the weights, and in halves of each sequence, of which each rank knows its tokens' experts."""
    together(rank, 2, tmp_path)
    decoder = tiny_decoder(4, **mixture("qwen3_moe"))
    learner = Learner(decoder, TrainConfig(micro_batch_tokens=60, lr=1e-2))
    metrics = learner.step(routed_batch(1, decoder)).metrics
    for weights, theirs in torch.load(tmp_path / "found").values():
        assert_close(weights, learner.policy.tensors(), atol=1e-5)
        for name in ("expert_entropy", "router_flips"):
            assert theirs[name] == pytest.approx(metrics[name], rel=0.2), "prompts that are cut apart count twice"


def test_samples_carry_their_experts_as_bytes() -> None:
    decoder = tiny_decoder(4, **mixture("olmoe"))
    samples = routed_batch(2, decoder).samples
    samples[1].routes = None
    header, buffer = packed(samples)
    for mine, theirs in zip(samples, unpacked(header, buffer), strict=True):
        assert np.array_equal(mine.tokens, theirs.tokens)
        assert mine.routes is theirs.routes is None or np.array_equal(mine.routes, theirs.routes)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="nine for each, and"):
        unpacked(header, buffer[:-1])
    micro = pack(samples)
    assert micro.routes_T is not None
    assert len(micro.routes_T) == len(micro.tokens_T)


@pytest.mark.parametrize("experts", [7, 300])
def test_numbers_of_one_byte_and_of_two(experts: int) -> None:
    layout = RouteLayout(2, 3, experts)
    dice = np.random.default_rng(experts)
    rows = np.concatenate([chosen(dice, layout, 20), layout.unknown(1)])
    routing = Routing(layout, torch.from_numpy(rows), torch.device("cpu"))
    scores = torch.rand(21, experts, generator=torch.Generator().manual_seed(random.Random(1).randrange(99)))
    for layer in range(2):
        found = routing(layer, scores, 3)
        assert np.array_equal(found[:20].numpy(), layout.decoded(rows)[:20, layer])
        assert torch.equal(found[20], likeliest(layer, scores, 3)[20])
    assert routing.routed.load_LE.sum() == 2 * 21 * 3
    assert routing.routed.replayed == 2 * 20 * 3
