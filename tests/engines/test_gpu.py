"""The GPU path against plain torch in float64: fresh random inputs, outputs poisoned first. Skipped without a GPU."""

import random
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from freerun.engines.base import Sampling
from freerun.engines.config import EngineConfig
from freerun.engines.embedded.engine import EmbeddedEngine
from freerun.engines.embedded.sequence import EndedAnswer
from freerun.engines.extras import Extras
from freerun.models.adapter import adapt_to_compute, changing, is_of_adapter
from freerun.models.checkpoint import load_decoder, save_decoder
from freerun.models.own import Layer, OwnDecoder, rotate
from freerun.models.shape import AdapterShape
from tests.tiny import tiny_decoder

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from freerun.engines.embedded import few_rows, fused
from freerun.engines.embedded.fused import DecodeAttention, DeviceCache, FusedDecoder, PrefillAttention, tile_tokens
from freerun.engines.embedded.prefill_layout import PrefillBatch, PrefillCapacity
from freerun.engines.embedded.sampler import truncated
from freerun.engines.embedded.sampling_slots import Slots
from freerun.engines.embedded.sequence import Chunk, Sequence

HEADS = [(16, 8, 128), (12, 2, 128), (9, 3, 64), (4, 4, 16)]
SHAPE: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "head_dim": 16,
    "intermediate_size": 96,
    "max_position_embeddings": 2048,
}


def decoder(seed: int, dtype: torch.dtype, **changes: Any) -> OwnDecoder:
    return tiny_decoder(seed, dtype=dtype, **(SHAPE | changes)).cuda()


def with_heads(heads: int, kv_heads: int, head_dim: int, family: str) -> OwnDecoder:
    changes: dict[str, Any] = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}
    model = decoder(3, torch.bfloat16, model_type=family, **changes)
    for name, parameter in model.named_parameters():
        if "_norm" in name:
            parameter.data.normal_(mean=1.0)
    return model


def first_layer(model: OwnDecoder) -> Layer:
    layer = model.layers[0]
    assert isinstance(layer, Layer)
    return layer


def projected(model: OwnDecoder, qkv: torch.Tensor, positions: list[int]) -> list[torch.Tensor]:
    """Queries, keys and values as the first layer makes them of its projections, in float64."""
    layer = first_layer(deepcopy(model).double())
    q, k, v = torch.split(qkv.double().view(len(qkv), -1, layer.head_dim), layer.heads, dim=1)
    angles = torch.tensor(positions, device="cuda")[:, None].double() * model.inv_freq.cuda().double()
    angles = torch.cat((angles, angles), -1)[:, None]
    rotary = angles.cos(), angles.sin()
    return [rotate(x, rotary).bfloat16().double() for x in (layer.q_norm(q), layer.k_norm(k))] + [v]


def random_projections(model: OwnDecoder, tokens: int) -> torch.Tensor:
    shape = model.shape
    width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    return torch.randn(tokens, width, dtype=torch.bfloat16, device="cuda")


def written(cache: DeviceCache, tables: torch.Tensor, row: int, position: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the first layer keeps that token's key and value."""
    block, place = int(tables[row, position // cache.block_tokens]), position % cache.block_tokens
    return cache.keys[0, block, :, place], cache.values[0, block, :, place]


def filled_cache(shape: Any, block_tokens: int, contexts: list[int]) -> tuple[DeviceCache, torch.Tensor]:
    """A cache of random keys and values, its blocks in random order, the rest poisoned."""
    needed = [-(-context // block_tokens) for context in contexts]
    cache = DeviceCache(shape, sum(needed) + 3, block_tokens, torch.bfloat16)
    cache.keys.fill_(float("nan"))
    cache.values.fill_(float("nan"))
    order = torch.randperm(sum(needed) + 3).tolist()
    tables = torch.full((len(contexts), max(needed)), order.pop(), dtype=torch.int32)
    for row, (context, blocks) in enumerate(zip(contexts, needed, strict=True)):
        for block in range(blocks):
            tables[row, block] = order.pop()
            inside = min(block_tokens, context - block * block_tokens)
            for tensor in (cache.keys, cache.values):
                tensor[:, tables[row, block], :, :inside] = torch.randn_like(tensor[:, 0, :, :inside])
    return cache, tables.cuda()


def attended(q: torch.Tensor, cache: DeviceCache, table: torch.Tensor, position: int) -> torch.Tensor:
    """One query of all heads over its context, in float64."""

    def context(tensor: torch.Tensor) -> torch.Tensor:
        rows = tensor[0, table.long()].transpose(1, 2).flatten(0, 1)[: position + 1]
        return rows.double().repeat_interleave(q.shape[0] // tensor.shape[2], dim=1)

    k, v = context(cache.keys), context(cache.values)
    weights = torch.softmax(torch.einsum("hd,nhd->hn", q.double(), k) / q.shape[-1] ** 0.5, -1)
    return torch.einsum("hn,nhd->hd", weights, v)


def reading_of(cache: DeviceCache, tables: torch.Tensor, starts: list[int], counts: list[int]) -> PrefillBatch:
    """So many tokens of each row, from there on. What they are does not matter to attention."""
    rows = zip(starts, counts, tables.tolist(), strict=True)
    chunks = [Chunk([0] * count, start, table) for start, count, table in rows]
    return PrefillBatch(PrefillCapacity.just_for(chunks, tile_tokens(cache.shape)), idle_block=0, chunks=chunks)


def off(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), HEADS)
@pytest.mark.parametrize(("block_tokens", "rows"), [(16, 3), (48, 40), (64, 150), (64, 520)])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_decode_attention(heads: int, kv_heads: int, head_dim: int, block_tokens: int, rows: int, family: str) -> None:
    model = with_heads(heads, kv_heads, head_dim, family)
    contexts = [random.choice([1, 2, 17, 64, 65, 300, 511, 513, 1025, 1500]) for _ in range(rows)]
    cache, tables = filled_cache(model.shape, block_tokens, contexts)
    qkv, last = random_projections(model, rows), [context - 1 for context in contexts]
    for row, position in enumerate(last):
        for tensor in written(cache, tables, row, position):
            tensor.fill_(float("nan"))
    positions = torch.tensor(last, dtype=torch.int32, device="cuda")
    turned = fused.rotary(positions, model.inv_freq.cuda())
    attend = DecodeAttention(cache, turned, positions, tables, max(contexts))
    got = [attend(first_layer(model), qkv).clone() for _ in range(2)]  # counters are reset
    q, k, v = projected(model, qkv, last)
    for row, position in enumerate(last):
        key, value = written(cache, tables, row, position)
        assert off(key, k[row]) < 1e-2
        assert torch.equal(value.double(), v[row])
    expected = torch.stack([attended(q[r], cache, tables[r], last[r]) for r in range(rows)])
    assert off(got[0].view_as(expected), expected) < 1e-2
    assert off(got[1].view_as(expected), expected) < 1e-2


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), HEADS)
@pytest.mark.parametrize(("block_tokens", "rows"), [(16, 3), (64, 30)])
@pytest.mark.parametrize("tokens", [2, 4])
def test_decode_attention_of_several_tokens(
    heads: int, kv_heads: int, head_dim: int, block_tokens: int, rows: int, tokens: int
) -> None:
    model = with_heads(heads, kv_heads, head_dim, "qwen3")
    before = [random.choice([0, 1, 15, 16, 63, 64, 126, 127, 128, 300, 511, 1025]) for _ in range(rows)]
    cache, tables = filled_cache(model.shape, block_tokens, [context + tokens for context in before])
    qkv = random_projections(model, rows * tokens)
    where = [(row, context + at) for row, context in enumerate(before) for at in range(tokens)]
    for row, position in where:
        for tensor in written(cache, tables, row, position):
            tensor.fill_(float("nan"))
    positions = torch.tensor(before, dtype=torch.int32, device="cuda")
    each = torch.tensor([position for _, position in where], device="cuda")
    turned = fused.rotary(each, model.inv_freq.cuda())
    attend = DecodeAttention(cache, turned, positions, tables, max(before) + tokens)
    got = [attend(first_layer(model), qkv).clone() for _ in range(2)]
    q, k, v = projected(model, qkv, each.tolist())
    for at, (row, position) in enumerate(where):
        key, value = written(cache, tables, row, position)
        assert off(key, k[at]) < 1e-2
        assert torch.equal(value.double(), v[at])
    expected = torch.stack([attended(q[at], cache, tables[row], position) for at, (row, position) in enumerate(where)])
    assert off(got[0].view_as(expected), expected) < 1e-2
    assert off(got[1].view_as(expected), expected) < 1e-2


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), HEADS)
@pytest.mark.parametrize("block_tokens", [16, 64])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_prefill_attention(heads: int, kv_heads: int, head_dim: int, block_tokens: int, family: str) -> None:
    model = with_heads(heads, kv_heads, head_dim, family)
    starts, counts = [0, 5, 130, 0], [1, 70, 3, 200]
    contexts = [start + count for start, count in zip(starts, counts, strict=True)]
    cache, tables = filled_cache(model.shape, block_tokens, contexts)
    qkv = random_projections(model, sum(counts))
    where = [(row, start + i) for row, (start, n) in enumerate(zip(starts, counts, strict=True)) for i in range(n)]
    for row, position in where:
        for tensor in written(cache, tables, row, position):
            tensor.fill_(float("nan"))
    reading = reading_of(cache, tables, starts, counts)
    got = PrefillAttention(cache, model.inv_freq.cuda(), reading)(first_layer(model), qkv)
    q, _, _ = projected(model, qkv, [position for _, position in where])
    expected = torch.stack([attended(q[t], cache, tables[r], p) for t, (r, p) in enumerate(where)])
    assert off(got.view_as(expected), expected) < 1e-2


@pytest.mark.parametrize("width", [64, 576, 1536])
def test_norm_and_gate(width: int) -> None:
    norm = torch.nn.RMSNorm(width, eps=1e-6).cuda().bfloat16()
    norm.weight.data.normal_()
    residual, delta = (torch.randn(37, width, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    added = (residual.float() + delta.float()).bfloat16()
    expected = F.rms_norm(added.double(), (width,), norm.weight.double(), 1e-6)
    assert off(fused.add_norm(residual, delta, norm), expected) < 5e-3
    assert torch.equal(residual, added)
    gate_up = torch.randn(37, 2 * width, dtype=torch.bfloat16, device="cuda")
    gate, up = gate_up.double().chunk(2, dim=-1)
    assert off(fused.silu_mul(gate_up), F.silu(gate) * up) < 1e-2


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 4e-2)])
def test_fused_forward_is_the_decoder(family: str, dtype: torch.dtype, tolerance: float) -> None:
    from freerun.models.attention import PackedAttention

    plain = decoder(1, torch.float32, model_type=family)
    model = decoder(1, dtype, model_type=family)
    cache = DeviceCache(model.shape, 9, 16, dtype)
    tokens = torch.randint(0, 512, (70,), generator=torch.Generator().manual_seed(0)).cuda()
    tables = torch.tensor([[7, 2, 5, 1, 3]], dtype=torch.int32, device="cuda")
    attend = PrefillAttention(cache, model.inv_freq.cuda(), reading_of(cache, tables, [0], [70]))
    with torch.no_grad():
        got = FusedDecoder(model).forward(tokens, attend)
        expected = plain.cpu()(tokens.cpu(), torch.arange(70), PackedAttention([70]))
    assert off(got.cpu(), expected.double()) < tolerance


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 4e-2)])
@pytest.mark.parametrize(("rows", "tokens"), [(1, 1), (3, 1), (17, 1), (5, 4), (8, 4)])
def test_few_rows_are_the_decoder(family: str, dtype: torch.dtype, tolerance: float, rows: int, tokens: int) -> None:
    """All of a step of rows that have nothing before it, by kernels that overlap; several times, as in a graph."""
    from freerun.models.attention import PackedAttention

    plain = decoder(1, torch.float32, model_type=family)
    model = decoder(1, dtype, model_type=family)
    given = torch.randint(0, 512, (rows * tokens,), generator=torch.Generator().manual_seed(0))
    tables = torch.arange(rows, dtype=torch.int32, device="cuda")[:, None].contiguous()
    positions = torch.zeros(rows, dtype=torch.int32, device="cuda")
    with torch.no_grad():
        expected = plain.cpu()(given, torch.arange(rows * tokens) % tokens, PackedAttention([tokens] * rows))
        for overlap in (False, True, True, True):
            cache = DeviceCache(model.shape, rows, 16, dtype)
            begun = few_rows.begin(model, model.inv_freq.cuda().float(), given.cuda(), positions)
            attend = DecodeAttention(cache, begun.rotary, positions, tables, 16, overlap)
            got = few_rows.forward(model, begun, attend, overlap)
            assert off(got.cpu(), expected.double()) < tolerance


def test_sampling_kernel_gives_the_logprob_of_what_it_chose() -> None:
    for vocabulary in (500, 20_000, 151_936):
        slots = Slots(33, 2, vocabulary, 1)
        slots.out_logprobs.fill_(float("nan"))
        logits = torch.randn(33, vocabulary, device="cuda") * 3
        temperature = torch.rand(33, device="cuda") + 0.5
        slots.inverse_temperature.copy_(1 / temperature)
        slots.noise.fill_(1.0)
        slots.noise[:5] = 0.0
        slots.seeds.random_(0, 2**31 - 1)
        slots.sample(logits)
        chosen, logprobs = slots.out_tokens[0].long(), slots.out_logprobs[0]
        expected = (logits.double() / temperature[:, None].double()).log_softmax(-1).gather(1, chosen[:, None])[:, 0]
        assert (logprobs - expected).abs().max() < 1e-4
        assert torch.equal(chosen[:5], logits[:5].argmax(-1))


def test_restricted_rows_sample_what_sorting_would_leave_them_in_the_same_step_as_others() -> None:
    for vocabulary in (500, 20_000, 151_936):
        asked = [(0, 1.0), (1, 1.0), (50, 1.0), (0, 0.5), (0, 0.95), (20, 0.9), (vocabulary + 7, 1.0), (0, 1e-6)]
        rows = 16 * len(asked)
        how = [Sampling(1, top_k=top_k, top_p=top_p) for top_k, top_p in asked] * 16
        slots = Slots(rows, 2, vocabulary, 1)
        logits = torch.randn(rows, vocabulary, device="cuda") * 3
        temperature = torch.rand(rows, device="cuda") + 0.5
        slots.inverse_temperature.copy_(1 / temperature)
        slots.noise.fill_(1.0)
        slots.seeds.random_(0, 2**31 - 1)
        slots.top_k.copy_(torch.tensor([s.top_k for s in how]))
        slots.top_p.copy_(torch.tensor([s.top_p for s in how]))
        slots.sample(logits)
        expected = truncated(logits / temperature[:, None], how)
        left = (expected > -torch.inf).sum(-1)
        # where the sum reaches top_p is a matter of rounding, in the order of summing
        assert ((logits >= slots.floors[:, None]).sum(-1) - left).abs().max() <= 1
        chosen = slots.out_tokens[0].long()[:, None]
        assert (logits.gather(1, chosen)[:, 0] >= slots.floors).all()
        logprobs = (logits.double() / temperature[:, None].double()).log_softmax(-1).gather(1, chosen)[:, 0]
        assert (slots.out_logprobs[0] - logprobs).abs().max() < 1e-4, "among all tokens"
        assert len(set(left.tolist())) > 4


def run(engine: EmbeddedEngine, swaps: list[OwnDecoder] | None = None) -> dict[tuple[str, int], EndedAnswer]:
    done, steps = {}, 0
    while engine.has_work:
        for id, completion in engine.step():
            done[id, completion.index] = completion
        steps += 1
        if swaps and steps % 12 == 0 and engine.version < len(swaps) - 1:
            engine.update_weights(engine.version + 1, dict(swaps[engine.version + 1].named_parameters()))
    return done


def test_weights_swapped_mid_answer_many_times() -> None:
    from tests.engines.test_embedded import recomputed

    versions = [decoder(seed, torch.float32) for seed in range(5)]
    config = EngineConfig(cache_tokens=16_384, max_running=24)
    engine = EmbeddedEngine(decoder(0, torch.float32), config.on("cuda", burst=4, step_tokens=100, block_tokens=16))
    dice = random.Random(0)
    prompts = {str(i): [dice.randrange(2, 512) for _ in range(dice.randrange(1, 150))] for i in range(8)}
    for id, prompt in prompts.items():
        sampling = Sampling(max_new_tokens=dice.randrange(20, 600), seed=int(id), ignore_eos=True)
        engine.submit(id, prompt, sampling, 4)
    done = run(engine, versions)
    assert len(done) == 32
    assert engine.version == 4
    assert engine.free_blocks == engine._blocks.count
    plain = [version.cpu() for version in versions]
    for (id, _), completion in done.items():
        for version in set(completion.versions):
            at = [i for i, v in enumerate(completion.versions) if v == version]
            expected = recomputed(plain[version], prompts[id], completion.tokens)[at]
            assert (torch.tensor(completion.logprobs)[at] - expected).abs().max() < 2e-3


def test_some_caches_of_a_group_are_rebuilt_and_others_kept() -> None:
    """Each update rebuilds half of the answers; what they sample up to the next one is what a recompute gives."""
    from tests.engines.test_embedded import recomputed

    versions = [decoder(seed, torch.float32) for seed in range(5)]
    config = EngineConfig(cache_tokens=16_384, max_running=24, on_update="auto")
    engine = EmbeddedEngine(decoder(0, torch.float32), config.on("cuda", burst=4, step_tokens=1_000, block_tokens=16))
    dice, rebuilt = random.Random(0), dict[int, set[tuple[str, int]]]()

    def choose(policy: str, version: int) -> set[Sequence]:
        chosen = {one for one in engine._scheduler.running if dice.random() < 0.5}
        rebuilt[version] = {(one.request.id, one.index) for one in chosen}
        return chosen

    engine._rebuilt = choose  # type: ignore[method-assign]
    prompts = {str(i): [dice.randrange(2, 512) for _ in range(dice.randrange(1, 150))] for i in range(5)}
    for id, prompt in prompts.items():
        engine.submit(id, prompt, Sampling(max_new_tokens=600, seed=int(id), ignore_eos=True), 4)
    done = run(engine, versions)
    assert len(done) == 20
    assert engine.version == 4
    assert engine.free_blocks == engine._blocks.count
    plain, kept, checked = [version.cpu() for version in versions], [], 0
    for key, completion in done.items():
        for version in set(completion.versions) - {0}:
            at = [i for i, v in enumerate(completion.versions) if v == version]
            expected = recomputed(plain[version], prompts[key[0]], completion.tokens)[at]
            apart = (torch.tensor(completion.logprobs)[at] - expected).abs()
            if key in rebuilt[version]:
                assert apart.max() < 2e-3
                checked += 1
            else:
                kept.append(apart.mean().item())
    assert checked > 10
    assert max(kept) > 1e-2


def test_the_error_of_kept_caches_is_measured() -> None:
    config = EngineConfig(cache_tokens=16_384, max_running=24, on_update="auto")
    engine = EmbeddedEngine(decoder(0, torch.bfloat16), config.on("cuda", burst=4, block_tokens=16))
    engine.submit("a", [3, 4, 5] * 20, Sampling(max_new_tokens=600, ignore_eos=True), 12)
    run(engine, [decoder(seed, torch.bfloat16) for seed in range(5)])
    choice = engine.cache_choice
    assert choice.error.tokens >= 8
    assert choice.error.mean > 1e-2
    assert choice.pace.read_cost is not None
    assert choice.kept > 0


def test_an_answer_does_not_depend_on_its_company_or_the_burst() -> None:
    sampling = Sampling(max_new_tokens=50, seed=9, ignore_eos=True)
    alone = EmbeddedEngine(decoder(2, torch.float32), EngineConfig(cache_tokens=8192).on("cuda", burst=8))
    alone.submit("x", [3, 4, 5], sampling, 2)
    expected = run(alone)
    crowd = EmbeddedEngine(
        decoder(2, torch.float32), EngineConfig(cache_tokens=8192, max_running=16).on("cuda", burst=3)
    )
    for i in range(9):
        crowd.submit(f"other{i}", [i + 2] * (i + 1), replace(sampling, seed=i), 3)
    crowd.submit("x", [3, 4, 5], sampling, 2)
    done = run(crowd)
    assert all(done["x", i].tokens == expected["x", i].tokens for i in range(2))


def always_guessing(engine: EmbeddedEngine, does: bool = True) -> EmbeddedEngine:
    engine._guess_pace.wanted = lambda rows: does  # type: ignore[method-assign]
    return engine


@pytest.mark.parametrize("temperature", [0.0, 0.1, 1.0])
def test_guessing_changes_nothing_but_the_pace(temperature: float) -> None:
    """Answers to a prompt that repeats itself, three at a time: a token is what it would have been."""
    dice = random.Random(1)
    prompts = [[dice.randrange(2, 20) for _ in range(7)] * 3 for _ in range(3)]
    answers = []
    for guesses in (False, True):
        config = EngineConfig(cache_tokens=32_768, max_running=8).on("cuda", block_tokens=16)
        engine = always_guessing(EmbeddedEngine(decoder(2, torch.float32), config), guesses)
        got: dict[tuple[str, int], EndedAnswer] = {}
        for id, prompt in enumerate([*prompts, *prompts]):  # the second time there are earlier answers
            sampling = Sampling(
                max_new_tokens=90 + id, seed=id % 3, temperature=temperature, top_p=0.9 if id % 2 else 1.0,
                stop_token_ids=(7,) if id % 3 else (), ignore_eos=True,
            )  # fmt: skip
            engine.submit(str(id), prompt, sampling, 3)
            if id % 3 == 2:
                got |= run(engine)
        answers.append(got)
        assert engine.free_blocks == engine._blocks.count
    assert engine.right.total() > 0
    assert engine.guessed.total() > engine.right.total()
    plain, guessed = answers
    same = sum(plain[key].tokens == guessed[key].tokens for key in plain)
    assert same >= len(plain) - (2 if temperature else 0), "a draw may feel the seventh digit"
    for key, answer in plain.items():
        if answer.tokens == guessed[key].tokens:
            assert answer.logprobs == pytest.approx(guessed[key].logprobs, abs=2e-3)
            assert answer.finish is guessed[key].finish


def test_weights_swapped_among_guesses() -> None:
    from tests.engines.test_embedded import recomputed

    versions = [decoder(seed, torch.float32) for seed in range(5)]
    config = EngineConfig(cache_tokens=16_384, max_running=24)
    engine = always_guessing(EmbeddedEngine(decoder(0, torch.float32), config.on("cuda", block_tokens=16)))
    engine.submit("a", [1, 2, 3, 1, 2, 3], Sampling(max_new_tokens=400, seed=3, ignore_eos=True, temperature=0.5), 5)
    done = run(engine, versions)
    assert engine.version == 4
    assert engine.right.total() > 0
    plain = [version.cpu() for version in versions]
    for answer in done.values():
        assert answer.versions == sorted(answer.versions)
        for version in set(answer.versions):
            at = [i for i, v in enumerate(answer.versions) if v == version]
            expected = recomputed(plain[version], [1, 2, 3, 1, 2, 3], answer.tokens, temperature=0.5)[at]
            assert (torch.tensor(answer.logprobs)[at] - expected).abs().max() < 2e-3


def test_restricted_sampling_on_the_gpu() -> None:
    engine = EmbeddedEngine(decoder(3, torch.float32), EngineConfig(cache_tokens=8192))
    engine.submit("a", [5, 6], Sampling(max_new_tokens=20, seed=1, top_k=1, ignore_eos=True), 1)
    engine.submit("b", [5, 6], Sampling(max_new_tokens=20, seed=1, temperature=0, ignore_eos=True), 1)
    done = run(engine)
    assert done["a", 0].tokens == done["b", 0].tokens
    assert done["a", 0].logprobs == pytest.approx(done["b", 0].logprobs, abs=1e-5)


def test_a_restricted_answer_leaves_its_company_as_it_was() -> None:
    sampling = Sampling(max_new_tokens=40, seed=3, ignore_eos=True)
    engine = EmbeddedEngine(decoder(3, torch.float32), EngineConfig(cache_tokens=8192).on("cuda", burst=4))
    engine.submit("free", [5, 6], sampling, 2)
    alone = run(engine)
    engine.submit("free", [5, 6], sampling, 2)
    engine.submit("held", [5, 6], replace(sampling, top_k=3, top_p=0.9), 2)
    together = run(engine)
    assert all(together["free", i].tokens == alone["free", i].tokens for i in range(2))
    assert together["held", 0].tokens != together["free", 0].tokens


def test_what_the_kernels_cannot_do_is_sampled_in_torch_with_the_same_dice() -> None:
    sampling = Sampling(max_new_tokens=40, seed=3, ignore_eos=True, temperature=0.8, top_k=20)
    engine = EmbeddedEngine(decoder(3, torch.float32), EngineConfig(cache_tokens=8192).on("cuda", burst=4))
    engine.submit("plain", [5, 6], sampling, 2)
    alone = run(engine)
    engine.submit("plain", [5, 6], sampling, 2)
    engine.submit("told", [5, 6], replace(sampling, extras=Extras(top_logprobs=3)), 2)
    engine.submit("varied", [5, 6], replace(sampling, extras=Extras(presence_penalty=2, min_tokens=3, min_p=0.01)), 2)
    together = run(engine)
    for i in range(2):
        for id in ("plain", "told"):
            assert together[id, i].tokens == alone["plain", i].tokens
            assert together[id, i].logprobs == pytest.approx(alone["plain", i].logprobs, abs=2e-3)
        assert [len(best) for best in together["told", i].alternatives] == [3] * 40
        assert len(set(together["varied", i].tokens)) > len(set(alone["plain", i].tokens))
    engine.submit("plain", [5, 6], sampling, 2)
    assert run(engine)["plain", 1].tokens == alone["plain", 1].tokens, "in bursts again"


def test_steps_are_short_from_the_news_of_new_weights_to_their_first_tokens() -> None:
    model = decoder(1, torch.bfloat16)
    engine = EmbeddedEngine(model, EngineConfig(cache_tokens=4096, max_running=8).on("cuda", burst=8))
    engine.warm_up()
    assert (engine.tokens, engine.running, engine.has_work) == (0, 0, False)
    assert engine._runner._guesses._graphs, "bursts with guesses were tried, too"  # type: ignore[attr-defined]
    assert not engine.guessed
    engine.submit("a", [1, 2, 3], Sampling(max_new_tokens=1900, seed=1, ignore_eos=True), 2)

    def sampled() -> int:
        before = engine.tokens
        engine.step()
        return engine.tokens - before

    assert any(sampled() > 4 for _ in range(100)), "bursts grow long when what was compiled first is forgotten"
    engine.expect_update(True)
    assert [sampled() for _ in range(3)][1:] == [2, 2], "after the step under way, short ones"
    engine.update_weights(1, {name: tensor.detach().clone() for name, tensor in model.named_parameters()}, "keep")
    assert [sampled() for _ in range(2)] == [2, 0], "at once; then one is under way again"
    assert any(sampled() > 4 for _ in range(100))


def with_adapter(model: OwnDecoder, seed: int) -> OwnDecoder:
    """The model with an adapter that matters; at seed 0 with one that is zero, as an engine begins."""
    if not any(is_of_adapter(name) for name, _ in model.named_parameters()):
        adapt_to_compute(model, AdapterShape(8, 16.0))
    generator = torch.Generator("cuda").manual_seed(seed)
    for name, parameter in model.named_parameters() if seed else ():
        if is_of_adapter(name):
            parameter.data.normal_(std=0.1, generator=generator)
    return model


def test_adapters_swapped_mid_answer_many_times() -> None:
    """Graphs that were captured with one adapter compute with the next."""
    from tests.engines.test_embedded import recomputed

    versions = [with_adapter(decoder(1, torch.float32), seed) for seed in range(5)]
    config = EngineConfig(cache_tokens=16_384, max_running=24)
    base = with_adapter(decoder(1, torch.float32), 0)
    engine = EmbeddedEngine(base, config.on("cuda", burst=4, step_tokens=100, block_tokens=16))
    dice = random.Random(0)
    prompts = {str(i): [dice.randrange(2, 512) for _ in range(dice.randrange(1, 150))] for i in range(8)}
    for id, prompt in prompts.items():
        engine.submit(id, prompt, Sampling(max_new_tokens=200, seed=int(id), ignore_eos=True), 3)
    done, steps = {}, 0
    while engine.has_work:
        for id, completion in engine.step():
            done[id, completion.index] = completion
        steps += 1
        if steps % 12 == 0 and engine.version < 4:
            engine.update_weights(engine.version + 1, changing(versions[engine.version + 1]))
    assert engine.version == 4
    plain = [version.cpu() for version in versions]
    for (id, _), completion in done.items():
        for version in set(completion.versions):
            at = [i for i, v in enumerate(completion.versions) if v == version]
            expected = recomputed(plain[version], prompts[id], completion.tokens)[at]
            assert (torch.tensor(completion.logprobs)[at] - expected).abs().max() < 2e-3


@pytest.mark.parametrize("bits", [16, 8, 4])
def test_an_adapter_over_few_bits_is_what_it_is_on_a_cpu(tmp_path: Path, bits: int) -> None:
    from tests.engines.test_embedded import recomputed

    save_decoder(tiny_decoder(1, **SHAPE), tmp_path / "model")
    models = [load_decoder(tmp_path / "model", device=device, bits=bits) for device in ("cuda", "cpu")]
    for model in models:
        adapt_to_compute(model, AdapterShape(8, 16.0))
        generator = torch.Generator().manual_seed(3)
        for parameter in changing(model).values():
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    config = EngineConfig(cache_tokens=8_192, dtype="float32")
    engine = EmbeddedEngine(models[0], config.on("cuda", burst=4, block_tokens=16))
    engine.submit("a", [5, 6, 7], Sampling(max_new_tokens=60, seed=1, ignore_eos=True), 4)
    for answer in run(engine).values():
        expected = recomputed(models[1], [5, 6, 7], answer.tokens)
        assert (torch.tensor(answer.logprobs) - expected).abs().max() < 2e-3
