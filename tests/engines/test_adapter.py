"""The engine with an adapter: it computes as the trainer does, whichever version of the adapter there is when."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from freerun.core import EngineError
from freerun.engines.config import EngineConfig
from freerun.engines.embedded.engine import EmbeddedEngine
from freerun.engines.embedded.load import load_for_engine
from freerun.engines.embedded.sequence import EndedAnswer
from freerun.models.adapter import adapt_to_compute, is_of_adapter
from freerun.models.checkpoint import save_decoder
from freerun.models.own import OwnDecoder
from freerun.models.shape import AdapterShape
from freerun.train.lora import adapter_state, attach, merged
from tests.architectures import random_decoder
from tests.engines.test_embedded import SAMPLING, engine, recomputed, run
from tests.tiny import tiny_decoder

ADAPTER = AdapterShape(3, 6.0)


def adapted(seed: int, dtype: torch.dtype = torch.float32) -> OwnDecoder:
    """The trainer's, after some steps: an adapter that matters."""
    decoder = tiny_decoder(1, dtype=dtype)
    attach(decoder, ADAPTER.rank, ADAPTER.alpha, seed=seed, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in adapter_state(decoder).items():
        if name.endswith("_b"):
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.2)
    return decoder


def base(dtype: torch.dtype = torch.float32) -> OwnDecoder:
    decoder = tiny_decoder(1, dtype=dtype)
    adapt_to_compute(decoder, ADAPTER)
    return decoder


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapters_swapped_mid_answer_many_times(dtype: torch.dtype) -> None:
    """Every log-probability equals that of a packed pass by the trainer with the adapter of that token's version."""
    tolerance = 1e-4 if dtype is torch.float32 else 0.15
    versions = [base(dtype), *(adapted(seed, dtype) for seed in range(1, 6))]
    e = engine(base(dtype), step_tokens=32, on_update="recompute", max_running=7)
    dice = random.Random(0)
    prompts = {f"r{i}": [dice.randrange(2, 48) for _ in range(dice.randrange(1, 40))] for i in range(4)}
    for id, prompt in prompts.items():
        e.submit(id, prompt, replace(SAMPLING, max_new_tokens=60), 3)
    done: dict[tuple[str, int], EndedAnswer] = {}
    steps = 0
    while e.has_work:
        for id, completion in e.step():
            done[id, completion.index] = completion
        steps += 1
        if steps % 25 == 0 and e.version < 5:
            e.update_weights(e.version + 1, adapter_state(versions[e.version + 1]))
    assert e.version == 5
    assert len({version for completion in done.values() for version in completion.versions}) >= 5
    for (id, _), completion in done.items():
        for version in set(completion.versions):
            at = [i for i, v in enumerate(completion.versions) if v == version]
            expected = recomputed(versions[version].float(), prompts[id], completion.tokens)[at]
            got = torch.tensor([completion.logprobs[i] for i in at])
            assert (got - expected).abs().max() < tolerance, f"version {version}"


def test_it_samples_what_merged_weights_would() -> None:
    trained = adapted(2)
    ours, theirs = engine(base()), engine(tiny_decoder(1))
    ours.update_weights(1, adapter_state(trained))
    theirs.update_weights(1, dict(merged(trained)))
    for e in (ours, theirs):
        e.submit("a", [5, 6, 7], SAMPLING, 4)
    got, expected = run(ours), run(theirs)
    for key, answer in expected.items():
        assert got[key].tokens == answer.tokens
        assert got[key].logprobs == pytest.approx(answer.logprobs, abs=1e-4)


def test_until_the_first_version_it_is_the_base() -> None:
    plain, with_adapter = engine(tiny_decoder(1)), engine(base())
    for e in (plain, with_adapter):
        e.submit("a", [5, 6, 7], SAMPLING, 2)
    got, expected = run(with_adapter), run(plain)
    assert all(got[key].logprobs == answer.logprobs for key, answer in expected.items())


def test_weights_are_refused_where_an_adapter_is_due_and_the_other_way_round() -> None:
    trained = adapted(2)
    with pytest.raises(EngineError, match="version 1 is not of this model"):
        engine(base()).update_weights(1, dict(merged(trained)))
    with pytest.raises(EngineError, match="version 1 is not of this model"):
        engine(tiny_decoder(1)).update_weights(1, adapter_state(trained))


def test_an_update_leaves_the_base_as_it_is(tmp_path: Path) -> None:
    save_decoder(tiny_decoder(1), tmp_path / "model")
    decoder = load_for_engine(tmp_path / "model", EngineConfig(dtype="float32"), adapter=ADAPTER)
    before = {name: parameter.clone() for name, parameter in decoder.named_parameters() if not is_of_adapter(name)}
    places = {name: parameter.data_ptr() for name, parameter in decoder.named_parameters()}
    e = EmbeddedEngine(decoder, EngineConfig(cache_tokens=1024))
    e.update_weights(1, {name: tensor.to(decoder.embed.weight) for name, tensor in adapter_state(adapted(2)).items()})
    after = dict(decoder.named_parameters())
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert {name: parameter.data_ptr() for name, parameter in after.items()} == places, "graphs stay valid"


def test_a_borrowed_decoder_is_adapted_alike() -> None:
    decoder = random_decoder("gemma2")
    names = set(decoder.adaptable)
    adapt_to_compute(decoder, ADAPTER)
    assert set(dict(decoder.named_parameters())) >= {f"{name}.lora_{x}" for name in names for x in "ab"}
    e = engine(decoder)
    e.submit("a", [5, 6, 7], SAMPLING, 1)
    first = run(e)["a", 0]
    generator = torch.Generator().manual_seed(0)
    new = {
        name: torch.randn(parameter.shape, generator=generator) * 0.1
        for name, parameter in decoder.named_parameters()
        if is_of_adapter(name)
    }
    e.update_weights(1, new)
    e.submit("a", [5, 6, 7], SAMPLING, 1)
    second = run(e)["a", 0]
    assert second.tokens != first.tokens
    got, expected = torch.tensor(second.logprobs), recomputed(decoder, [5, 6, 7], second.tokens)
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def test_the_shape_counts_what_there_is() -> None:
    decoder = base()
    numbers = sum(p.numel() for name, p in decoder.named_parameters() if is_of_adapter(name))
    assert numbers == ADAPTER.num_parameters(decoder.shape)
    assert all(isinstance(decoder.get_submodule(name), nn.Linear) for name in decoder.adaptable)
