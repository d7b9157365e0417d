"""Which experts tokens went through, as engines tell it: what each pass chose, whoever shares or gives way."""

import random
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from freerun.core import EngineError, FinishReason
from freerun.engines import wire
from freerun.engines.config import EngineConfig
from freerun.engines.embedded import engine as engine_module
from freerun.engines.embedded.engine import EmbeddedEngine
from freerun.engines.embedded.plain import Recording
from freerun.engines.embedded.sequence import EndedAnswer
from freerun.engines.embedded.served import ServedEngine
from freerun.models.attention import PackedAttention
from freerun.models.decoder import Decoder
from freerun.models.own import OwnDecoder
from freerun.models.routes import RouteLayout, Routes
from freerun.models.shape import MIXTURES as FAMILIES
from freerun.rollouts.samples import sample_of_turns
from tests.engines.ahead import AheadRunner
from tests.engines.test_embedded import SAMPLING, recomputed, run
from tests.tiny import mixture, tiny_decoder

ROUTED = replace(SAMPLING, routes=True)


def mixed(family: str, seed: int = 0) -> OwnDecoder:
    return tiny_decoder(seed, **mixture(family))


def engine(decoder: Decoder, cache_tokens: int = 2048, step_tokens: int = 16) -> EmbeddedEngine:
    config = EngineConfig(max_running=6, cache_tokens=cache_tokens).on("cpu", step_tokens=step_tokens, block_tokens=16)
    return EmbeddedEngine(decoder, config)


def routes_of(decoder: Decoder, tokens: list[int]) -> Routes:
    """By one packed pass."""
    assert decoder.routes
    recording = Recording(decoder.routes)
    with torch.no_grad():
        decoder(torch.tensor(tokens), torch.arange(len(tokens)), PackedAttention([len(tokens)]), recording)
    return recording.routes


def alike(routes: Routes | None, expected: Routes) -> float:
    """The share of choices that are the same: rounding decides some."""
    assert routes is not None
    assert routes.shape == expected.shape
    return float((np.sort(routes) == np.sort(expected)).mean())


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_and_answers_go_through_what_a_packed_pass_chooses(
    family: str, ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of many lengths, shared and found again, answers that give way and come back."""
    if ahead:
        monkeypatch.setattr(engine_module, "PlainRunner", AheadRunner)
    decoder = mixed(family)
    e = engine(decoder, cache_tokens=224)
    prompts = {str(n): [2 + i % 40 for i in range(n)] for n in (1, 2, 16, 17, 40)} | {"again": list(range(2, 42))}
    for id, prompt in prompts.items():
        e.submit(id, prompt, ROUTED, 2)
    done = run(e)
    assert e.preemptions
    for (id, _), answer in done.items():
        assert alike(answer.routes, routes_of(decoder, prompts[id] + answer.tokens)[:-1]) > 0.995
        expected = recomputed(decoder, prompts[id], answer.tokens)
        torch.testing.assert_close(torch.tensor(answer.logprobs), expected, atol=2e-4, rtol=2e-4)


def test_a_next_turn_finds_what_the_one_before_went_through() -> None:
    decoder = mixed("qwen3_moe")
    e = engine(decoder)
    prompt = [2 + i % 40 for i in range(21)]
    e.submit("a", prompt, ROUTED, 1)
    first = run(e)["a", 0]
    longer = prompt + first.tokens + [7, 8, 9]
    e.submit("b", longer, ROUTED, 1)
    second = run(e)["b", 0]
    assert second.cached >= 32
    assert alike(second.routes, routes_of(decoder, longer + second.tokens)[:-1]) > 0.995
    sample = sample_of_turns([prompt, first.completion, [7, 8, 9], second.completion, [4, 4]], second.finish, "")
    assert sample.routes is not None
    assert first.routes is not None
    assert second.routes is not None
    assert len(sample.routes) == len(sample.tokens)
    known = len(prompt) + len(first.tokens) - 1
    assert np.array_equal(sample.routes[:known], first.routes)
    assert np.array_equal(sample.routes[known:-3], second.routes[known:])
    assert (sample.routes[-3:] == 255).all()


def test_each_token_keeps_the_choice_it_was_sampled_by() -> None:
    """New weights in mid-answer fill the cache again; what was chosen when a token was sampled stays."""
    versions = [mixed("olmoe", seed) for seed in range(3)]
    e = engine(mixed("olmoe", 0))
    prompt = [2 + i % 40 for i in range(19)]
    e.submit("a", prompt, ROUTED, 3)
    done: dict[tuple[str, int], EndedAnswer] = {}
    for step in range(1000):
        done |= {(id, answer.index): answer for id, answer in e.step()}
        if step in (8, 16):
            e.update_weights(e.version + 1, dict(versions[e.version + 1].named_parameters()))
        if not e.has_work:
            break
    assert {version for answer in done.values() for version in answer.versions} == {0, 1, 2}
    for answer in done.values():
        assert answer.routes is not None
        for version in set(answer.versions):
            at = [len(prompt) - 1 + place for place, theirs in enumerate(answer.versions) if theirs == version]
            expected = routes_of(versions[version], prompt + answer.tokens)
            assert alike(answer.routes[at], expected[at]) > 0.99


def test_who_does_not_ask_is_not_told_and_dense_models_have_nothing_to_tell() -> None:
    for decoder, sampling in ((mixed("mixtral"), SAMPLING), (tiny_decoder(), ROUTED)):
        e = engine(decoder)
        e.submit("a", [3, 4, 5], sampling, 1)
        assert run(e)["a", 0].routes is None


def test_an_answer_that_is_ended_while_it_waits_says_what_it_knows() -> None:
    config = EngineConfig(max_running=6, cache_tokens=2048).on("cpu", step_tokens=16, block_tokens=16)
    e = ServedEngine(mixed("mixtral"), config)
    e.submit("a", [3, 4, 5], ROUTED, 1)
    for _ in range(4):
        e.step()
    (_, answer), *_ = e.abort_all()
    assert answer.routes is not None
    assert len(answer.routes) == 3 + len(answer.tokens) - 1


@pytest.mark.parametrize(("experts", "width"), [(8, 6), (255, 6), (256, 12), (512, 12)])
def test_layout(experts: int, width: int) -> None:
    layout = RouteLayout(3, 2, experts)
    dice = random.Random(experts)
    chosen = np.array([[[dice.randrange(experts) for _ in range(2)] for _ in range(3)] for _ in range(5)])
    assert layout.width == width
    assert np.array_equal(layout.decoded(layout.encoded(chosen)), chosen)
    assert (layout.decoded(layout.unknown(2)) >= experts).all()
    with pytest.raises(ValueError, match="experts came for 2 layers and 2 a token, and the model has 3 layers of 2"):
        layout.encoded(chosen[:, :2])


def test_wire_takes_ours_and_vllms() -> None:
    layout = RouteLayout(3, 2, 8)
    chosen = np.arange(24).reshape(4, 3, 2) % 8
    ours: Any = layout.encoded(chosen)
    theirs: Any = chosen.astype(np.int32)
    for sent in (ours, theirs):
        choice = wire.choice_of(0, [3, 4], [-1.0, -1.0], [0, 0], FinishReason.STOP, routes=sent)
        again = msgspec.json.decode(wire.encode(choice), type=wire.Choice)
        completion = wire.Answers(layout).add(again)
        assert completion
        assert completion.routes is not None
        assert np.array_equal(completion.routes, ours)
    choice.routed_experts = "not base64"
    with pytest.raises(EngineError, match="came in a form that is not known"):
        wire.Answers(layout).add(choice)


def test_tokens_that_were_guessed_have_theirs_too() -> None:
    decoder = mixed("mixtral", 3)
    e = engine(decoder)
    prompt = [5, 6, 7] * 4
    e.submit("a", prompt, replace(ROUTED, temperature=0.0, max_new_tokens=300), 1)
    answer = run(e)["a", 0]
    assert sum(e.right.values()) > 20
    assert alike(answer.routes, routes_of(decoder, prompt + answer.tokens)[:-1]) > 0.995
