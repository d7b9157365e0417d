"""Mixtures by transformers' code: which experts tokens went through in the engine, and training on these."""

import random
from typing import Any

import numpy as np
import pytest
import torch

from freerun.core import Batch, Group, Sample, Task
from freerun.engines.config import EngineConfig
from freerun.engines.embedded.engine import EmbeddedEngine
from freerun.models.attention import PackedAttention
from freerun.models.decoder import Decoder, likeliest
from freerun.train.config import TrainConfig
from freerun.train.learner import Learner
from tests.architectures import _known, random_decoder
from tests.engines.test_embedded import run
from tests.engines.test_routed import ROUTED, alike, routes_of

FAMILIES = _known(
    *("qwen2_moe", "qwen3_moe", "mixtral", "olmoe", "gpt_oss", "deepseek_v3", "glm4_moe", "granitemoe", "flex_olmo")
)
"""Softmax before and after the choice, sigmoids with a bias, groups of experts, layers without experts."""
CHANGES: dict[str, dict[str, Any]] = {"gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2}}


def hidden(decoder: Decoder, tokens: torch.Tensor, choose: Any = likeliest) -> torch.Tensor:
    found: torch.Tensor = decoder(tokens, torch.arange(len(tokens)), PackedAttention([len(tokens)]), choose)
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_routers_take_what_they_are_told_and_learn_from_it(family: str) -> None:
    decoder = random_decoder(family, dtype=torch.float64, **CHANGES.get(family, {}))
    layout = decoder.routes
    assert layout
    tokens = torch.arange(2, 30)
    live = layout.decoded(routes_of(decoder, tokens.tolist()))
    plain = hidden(decoder, tokens)

    def told(numbers: Any) -> torch.Tensor:
        asked = []

        def choose(layer: int, scores_TE: torch.Tensor, k: int) -> torch.Tensor:
            assert scores_TE.shape == (28, layout.experts)
            asked.append(layer)
            return torch.from_numpy(numbers[:, layer].astype(np.int64))

        found = hidden(decoder, tokens, choose)
        assert asked == list(range(layout.layers))
        return found

    torch.testing.assert_close(told(live), plain, atol=1e-9, rtol=1e-9)
    other = told((live + 1) % layout.experts)
    assert (other - plain).abs().max() > 1e-3
    torch.autograd.backward(other.square().sum())
    routers = [p.grad for n, p in decoder.named_parameters() if ".gate.weight" in n or ".router." in n]
    assert len(routers) >= layout.layers
    assert all(grad is not None and grad.any() for grad in routers), "by the scores of those that were told"


def test_engine_and_trainer_take_the_same() -> None:
    decoder = random_decoder("qwen2_moe")
    engine = EmbeddedEngine(decoder, EngineConfig(max_running=4, cache_tokens=1024).on("cpu", step_tokens=16))
    prompt = [2 + i % 40 for i in range(20)]
    engine.submit("a", prompt, ROUTED, 4)
    samples = []
    for answer in run(engine).values():
        whole = prompt + answer.tokens
        assert alike(answer.routes, routes_of(decoder, whole)[:-1]) > 0.99
        assert decoder.routes
        assert answer.routes is not None
        samples.append(
            Sample(
                whole, [False] * 20 + [True] * 24, [0.0] * 20 + answer.logprobs, [-1] * 20 + answer.versions,
                answer.finish, reward=random.Random(answer.index).random(),
                routes=np.concatenate([answer.routes, decoder.routes.unknown(1)]),
            )
        )  # fmt: skip
    for config, off in ((TrainConfig(recompute=True), 1e-3), (TrainConfig(dtype="bfloat16"), 1.0)):
        learner = Learner(random_decoder("qwen2_moe"), config)
        metrics = learner.step(Batch(0, [Group(0, Task("", "", []), samples, 0)])).metrics
        assert metrics["router_replayed_share"] > 0.9, "also where it computes with a copy"
        assert metrics["router_flips"] < off / 10
        assert metrics["engine_mismatch_max"] < off


def test_routers_that_choose_otherwise_are_left_alone() -> None:
    for family in _known("phimoe", "llama"):
        assert random_decoder(family).routes is None
