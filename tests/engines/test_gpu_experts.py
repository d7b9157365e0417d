"""Mixtures of experts on a GPU: the engine's kernels, its answers and what it tells of them. Skipped without a GPU."""

import random
from typing import Any

import numpy as np
import pytest
import torch

from freerun.engines.base import Sampling
from freerun.engines.config import EngineConfig
from freerun.engines.embedded.engine import EmbeddedEngine
from freerun.models.experts import router_scores, through_experts, weights_of
from freerun.models.own import ExpertLayer, OwnDecoder
from freerun.models.shape import MIXTURES as FAMILIES
from tests.engines.test_embedded import recomputed
from tests.engines.test_routed import alike, routes_of
from tests.tiny import mixture, tiny_decoder

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from freerun.engines.embedded.experts import RouteNotes, feed
from freerun.engines.embedded.fused import FusedDecoder
from tests.engines.test_gpu import off, run

LARGER: dict[str, Any] = {
    "hidden_size": 128, "head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
    "max_position_embeddings": 2048,
}  # fmt: skip


def mixed(family: str, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> OwnDecoder:
    model = tiny_decoder(seed, std=0.1, dtype=dtype, **(mixture(family) | LARGER | changes))
    model.inv_freq = tiny_decoder(**(mixture(family) | LARGER | changes)).inv_freq
    return model.cuda().requires_grad_(False)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize(
    ("experts", "per_token", "ffn"), [(8, 2, 352), (32, 4, 96), (64, 8, 64), (300, 4, 32), (5, 3, 40)]
)
def test_a_layers_experts(experts: int, per_token: int, ffn: int, dtype: torch.dtype, tolerance: float) -> None:
    """Few tokens by our kernels, many by grouped products; and the choice is noted where it belongs."""
    shape = {"num_experts": experts, "num_experts_per_tok": per_token, "moe_intermediate_size": ffn}
    model = mixed("qwen3_moe", 1, dtype, **shape, mlp_only_layers=[])
    layer = model.layers[1]
    assert isinstance(layer, ExpertLayer)
    assert model.routes
    for tokens in (1, 3, 17, 64, 300, 1500):
        x = torch.randn(tokens, 128, device="cuda").to(dtype)
        moment = torch.tensor([2], dtype=torch.int32, device="cuda")
        notes = RouteNotes.empty(model.routes, 4, tokens + 3, moment)
        got = feed(layer, x, notes)
        scores = router_scores(x.double(), layer.router.weight.double())
        chosen = notes.out[2, :tokens, 1].long() % 65_536
        likely = scores.topk(per_token, dim=-1).values.sum(-1)
        assert (likely - scores.gather(1, chosen).sum(-1)).abs().max() < 1e-4, "the likeliest, up to rounding"
        assert all(len(set(row)) == per_token for row in chosen.tolist())
        assert not notes.out[[0, 1, 3]].any()
        assert not notes.out[:, tokens:].any()
        matrices = (layer.expert_gate_up.by_expert.double(), layer.expert_down.by_expert.double())
        expected = through_experts(x.double(), weights_of(scores, chosen, layer.experts.normed), chosen, *matrices)
        assert off(got, expected) < tolerance


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_and_their_experts_are_those_of_a_packed_pass(family: str) -> None:
    """Prompts by graphs and without, shared and found again; weights that change in mid-answer; bursts ahead."""
    versions = [mixed(family, seed) for seed in range(3)]
    config = EngineConfig(cache_tokens=16_384, max_running=24)
    engine = EmbeddedEngine(mixed(family, 0), config.on("cuda", burst=4, step_tokens=1_500, block_tokens=16))
    dice = random.Random(0)
    prompts = {str(i): [dice.randrange(2, 512) for _ in range(dice.choice([1, 5, 90, 1200]))] for i in range(8)}
    for id, prompt in prompts.items():
        sampling = Sampling(max_new_tokens=dice.randrange(20, 200), seed=int(id), ignore_eos=True, routes=True)
        engine.submit(id, prompt, sampling, 3)
    done = run(engine, versions)
    assert engine.version == 2
    plain = [version.cpu() for version in versions]
    for (id, _), answer in done.items():
        assert answer.routes is not None
        whole = prompts[id] + answer.tokens
        assert len(answer.routes) == len(whole) - 1
        for version in set(answer.versions):
            at = [place for place, theirs in enumerate(answer.versions) if theirs == version]
            rows = np.array(at) + len(prompts[id]) - 1
            assert alike(answer.routes[rows], routes_of(plain[version], whole)[rows]) > 0.98
            expected = recomputed(plain[version], prompts[id], answer.tokens)[at]
            error = (torch.tensor(answer.logprobs)[at] - expected).abs()
            assert error.median() < 1e-3
            assert (error > 5e-3).float().mean() < 0.05, "a choice of experts may be decided by rounding"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_graph_holds_a_whole_pass(family: str) -> None:
    """Nothing asks the device, and a replay computes what is in its input then."""
    from freerun.engines.embedded.fused import DecodeAttention, DeviceCache, rotary

    model = mixed(family, 2, torch.bfloat16)
    fused, cache = FusedDecoder(model), DeviceCache(model.shape, 9, 16, torch.bfloat16)
    tokens = torch.arange(8, dtype=torch.int32, device="cuda")
    positions = torch.zeros(8, dtype=torch.int32, device="cuda")
    tables = torch.arange(8, dtype=torch.int32, device="cuda")[:, None].contiguous()

    def once() -> torch.Tensor:
        attend = DecodeAttention(cache, rotary(positions, model.inv_freq.float()), positions, tables, 16)
        return fused.forward(tokens, attend)

    once()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = once()
    for first in (100, 200):
        tokens.copy_(torch.arange(first, first + 8))
        graph.replay()
        torch.testing.assert_close(out.clone(), once(), atol=1e-2, rtol=1e-2)
