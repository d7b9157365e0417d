"""The embedded engine: what it samples, how it shares, stops, cancels and takes new weights."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from freerun.core import EngineError, FinishReason
from freerun.engines.base import Sampling
from freerun.engines.config import EngineConfig
from freerun.engines.embedded.engine import EmbeddedEngine
from freerun.engines.embedded.launched_step import LaunchedStep, Sampled
from freerun.engines.embedded.scheduler import Step
from freerun.engines.embedded.sequence import EndedAnswer
from freerun.models.attention import PackedAttention
from freerun.models.decoder import Decoder
from tests.engines.ahead import AheadRunner
from tests.tiny import tiny_decoder

SAMPLING = Sampling(max_new_tokens=24, seed=11, ignore_eos=True)


def engine(
    decoder: Decoder | None = None,
    block_tokens: int | None = None,
    step_tokens: int | None = None,
    guesses: bool = True,
    **config: object,
) -> EmbeddedEngine:
    settings = EngineConfig.model_validate(config).on("cpu", block_tokens=block_tokens, step_tokens=step_tokens)
    return EmbeddedEngine(decoder or tiny_decoder(), settings, guesses=guesses)


def run(engine: EmbeddedEngine) -> dict[tuple[str, int], EndedAnswer]:
    done: dict[tuple[str, int], EndedAnswer] = {}
    while engine.has_work:
        for id, completion in engine.step():
            assert (id, completion.index) not in done, "an answer ended twice"
            done[id, completion.index] = completion
    return done


def recomputed(decoder: Decoder, prompt: list[int], tokens: list[int], temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities of the answer, all at once, by the plain packed forward pass in float32."""
    sequence = torch.tensor(prompt + tokens)
    with torch.no_grad():
        hidden = decoder(sequence, torch.arange(len(sequence)), PackedAttention([len(sequence)]))
        logprobs = (decoder.logits(hidden).float() / temperature).log_softmax(-1)
    at = torch.arange(len(prompt) - 1, len(sequence) - 1)
    return logprobs[at, sequence[at + 1]]


@pytest.mark.parametrize("prompt_length", [1, 2, 15, 16, 17, 33, 40])
def test_logprobs_are_those_of_a_recompute(prompt_length: int) -> None:
    decoder = tiny_decoder(1)
    prompt = [2 + i % 40 for i in range(prompt_length)]
    e = engine(decoder, step_tokens=8)
    e.submit("a", prompt, replace(SAMPLING, temperature=0.7), 5)
    e.submit("b", prompt[::-1], SAMPLING, 3)
    done = run(e)
    assert len(done) == 8
    assert len({tuple(done["a", i].tokens) for i in range(5)}) == 5, "the samples of a group must differ"
    for (id, _), completion in done.items():
        given = prompt if id == "a" else prompt[::-1]
        expected = recomputed(decoder, given, completion.tokens, 0.7 if id == "a" else 1.0)
        torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=1e-4)
        assert completion.versions == [0] * 24
    assert e.free_blocks == e._blocks.count


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_swapped_mid_answer_many_times(dtype: torch.dtype) -> None:
    """Every log-probability equals the recompute by the weights of that token's version: labels alone prove nothing."""
    tolerance = 1e-4 if dtype is torch.float32 else 0.15
    versions = [tiny_decoder(seed, dtype=dtype) for seed in range(9)]
    e = engine(tiny_decoder(0, dtype=dtype), step_tokens=32, on_update="recompute", max_running=7)
    dice = random.Random(0)
    prompts = {f"r{i}": [dice.randrange(2, 48) for _ in range(dice.randrange(1, 40))] for i in range(4)}
    for id, prompt in prompts.items():
        e.submit(id, prompt, replace(SAMPLING, max_new_tokens=60), 3)
    done: dict[tuple[str, int], EndedAnswer] = {}
    steps, lost = 0, 0
    while e.has_work:
        for id, completion in e.step():
            done[id, completion.index] = completion
        steps += 1
        if steps % 17 == 0 and e.version < 8:
            tensors = dict(versions[e.version + 1].named_parameters())
            report = e.update_weights(e.version + 1, tensors)
            lost += report.recomputed_tokens
    assert e.version == 8
    assert lost > 0
    assert len(done) == 12
    spanning = 0
    for (id, _), completion in done.items():
        assert completion.versions == sorted(completion.versions)
        spanning += len(set(completion.versions)) > 2
        for version in set(completion.versions):
            at = [i for i, v in enumerate(completion.versions) if v == version]
            expected = recomputed(versions[version].float(), prompts[id], completion.tokens)[at]
            got = torch.tensor([completion.logprobs[i] for i in at])
            assert (got - expected).abs().max() < tolerance, f"version {version}"
    assert spanning >= 6


def test_keep_goes_on_with_the_old_cache() -> None:
    """`keep` is cheaper; its log-probabilities are not those of a recompute, which is why it is a choice."""
    old, new = tiny_decoder(0), tiny_decoder(5)
    e = engine(tiny_decoder(0), on_update="keep")
    e.submit("a", [5, 6, 7], SAMPLING, 1)
    for _ in range(12):
        e.step()
    report = e.update_weights(1, dict(new.named_parameters()))
    assert report.recomputed_tokens == 0
    completion = run(e)["a", 0]
    assert completion.versions.count(0) > 5
    assert completion.versions.count(1) > 5
    first_new = completion.versions.index(1)
    before = recomputed(old, [5, 6, 7], completion.tokens)[:first_new]
    torch.testing.assert_close(torch.tensor(completion.logprobs[:first_new]), before, atol=1e-4, rtol=1e-4)
    after = recomputed(new, [5, 6, 7], completion.tokens)[first_new:]
    assert (torch.tensor(completion.logprobs[first_new:]) - after).abs().mean() > 0.01


def test_a_runner_ahead_of_the_host_gives_the_same_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens, log-probabilities and ends, with stop tokens in the middle of a burst."""

    def answers() -> dict[tuple[str, int], EndedAnswer]:
        e = engine(tiny_decoder(2), max_running=5, step_tokens=16)
        for i in range(6):
            e.submit(f"r{i}", [3, 4, 5 + i] * (i + 1), replace(SAMPLING, seed=i, stop_token_ids=(7, 9, 11)), 3)
        done = run(e)
        assert e.free_blocks == e._blocks.count
        return done

    expected = answers()
    assert {FinishReason.STOP, FinishReason.LENGTH} == {completion.finish for completion in expected.values()}
    monkeypatch.setattr("freerun.engines.embedded.engine.PlainRunner", AheadRunner)
    got = answers()
    assert got.keys() == expected.keys()
    for key, completion in got.items():
        assert (completion.tokens, completion.finish) == (expected[key].tokens, expected[key].finish)
        assert completion.logprobs == pytest.approx(expected[key].logprobs, abs=1e-4)


def test_nothing_is_under_way_between_steps_while_new_weights_are_on_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    under_way: list[int] = []
    """After each launch, steps whose results are not there."""

    flying = 0

    class Watched(AheadRunner):
        def launch(self, step: Step) -> LaunchedStep:
            nonlocal flying
            launched = super().launch(step)
            wait, flying = launched.wait, flying + 1
            under_way.append(flying)

            def results() -> Sampled:
                nonlocal flying
                flying -= 1
                return wait()

            launched.wait = results
            return launched

    monkeypatch.setattr("freerun.engines.embedded.engine.PlainRunner", Watched)
    answering = engine()
    answering.submit("a", [3, 4, 5], replace(SAMPLING, max_new_tokens=60), 2)
    for _ in range(4):
        answering.step()
    assert under_way == [1, 2, 2, 2]
    answering.expect_update(True)
    for _ in range(3):
        answering.step()
        assert flying == 0
    assert under_way[4:] == [1, 1, 1]
    answering.expect_update(False)
    for _ in range(2):
        answering.step()
    assert under_way[7:] == [1, 2]


def test_an_answer_does_not_depend_on_its_company() -> None:
    alone = engine(tiny_decoder(2))
    alone.submit("a", [3, 4, 5], SAMPLING, 4)
    expected = {index: c.tokens for (_, index), c in run(alone).items()}
    crowd = engine(tiny_decoder(2), max_running=5, step_tokens=7, cache_tokens=112)
    dice = random.Random(4)
    for i in range(6):
        crowd.submit(f"other{i}", [dice.randrange(48) for _ in range(9)], replace(SAMPLING, seed=i), 2)
    crowd.submit("a", [3, 4, 5], SAMPLING, 4)
    done = run(crowd)
    assert crowd.preemptions > 0
    assert {index: done["a", index].tokens for index in range(4)} == expected


def test_it_tells_how_far_the_longest_answer_is() -> None:
    e = engine()
    assert e.furthest == (0, 0)
    e.submit("a", [5, 6, 7], SAMPLING, 1)
    for _ in range(6):
        e.step()
    e.submit("b", [5, 6], replace(SAMPLING, max_new_tokens=9), 1)
    e.step()
    tokens, most = e.furthest
    assert 4 <= tokens <= 8
    assert most == 24
    run(e)
    assert e.furthest == (0, 0)


def test_greedy_takes_the_likeliest() -> None:
    decoder = tiny_decoder(3)
    e = engine(decoder)
    e.submit("a", [9, 8], replace(SAMPLING, temperature=0.0), 2)
    done = run(e)
    assert done["a", 0].tokens == done["a", 1].tokens
    sequence = [9, 8]
    for token in done["a", 0].tokens:
        with torch.no_grad():
            hidden = decoder(torch.tensor(sequence), torch.arange(len(sequence)), PackedAttention([len(sequence)]))
        assert int(decoder.logits(hidden[-1]).argmax()) == token
        sequence.append(token)


def frequencies(sampling: Sampling, draws: int = 4000) -> tuple[torch.Tensor, torch.Tensor]:
    """How often each first token was sampled, against the model's own probabilities."""
    decoder = tiny_decoder(6, std=0.15)
    e = engine(decoder, max_running=draws, step_tokens=2 * draws, cache_tokens=16 * (draws + 9))
    e.submit("a", [7], replace(sampling, max_new_tokens=1), draws)
    counts = torch.zeros(48)
    for completion in run(e).values():
        counts[completion.tokens[0]] += 1
    with torch.no_grad():
        hidden = decoder(torch.tensor([7]), torch.tensor([0]), PackedAttention([1]))
    return counts / draws, decoder.logits(hidden[0]) / sampling.temperature


def test_sampling_follows_the_distribution() -> None:
    got, logits = frequencies(replace(SAMPLING, temperature=1.3))
    assert (got - logits.softmax(-1)).abs().max() < 0.03
    got, logits = frequencies(replace(SAMPLING, top_k=3))
    kept = logits.topk(3).indices
    assert got[kept].sum() == pytest.approx(1.0)
    assert (got[kept] - logits[kept].softmax(-1)).abs().max() < 0.03
    got, logits = frequencies(replace(SAMPLING, top_p=0.5))
    ordered = logits.softmax(-1).sort(descending=True)
    count = int((ordered.values.cumsum(-1) < 0.5).sum()) + 1
    kept = ordered.indices[:count]
    assert got[kept].sum() == pytest.approx(1.0)
    assert (got[kept] - logits[kept].softmax(-1)).abs().max() < 0.03


@pytest.mark.parametrize(
    "restricted", [{"top_k": 1}, {"top_k": 5}, {"top_p": 0.6}, {"top_k": 9, "top_p": 0.7}], ids=str
)
def test_logprobs_are_the_policys_whatever_may_be_sampled(restricted: dict[str, Any]) -> None:
    """Among all tokens: what top-k and top-p leave out is not taken for a change of the policy."""
    decoder = tiny_decoder(6, std=0.15)
    e = engine(decoder)
    e.submit("a", [7], replace(SAMPLING, temperature=0.9, **restricted), 3)
    e.submit("free", [7], replace(SAMPLING, temperature=0.9), 3)
    for completion in run(e).values():
        tokens = torch.tensor([7, *completion.tokens])
        with torch.no_grad():
            hidden = decoder(tokens, torch.arange(len(tokens)), PackedAttention([len(tokens)]))
            logprobs = (decoder.logits(hidden) / 0.9).log_softmax(-1)[:-1].gather(1, tokens[1:, None])[:, 0]
        assert completion.logprobs == pytest.approx(logprobs.tolist(), abs=1e-4)


def test_ways_to_end() -> None:
    decoder = tiny_decoder(8)
    probe = engine(decoder)
    probe.submit("a", [4], replace(SAMPLING, max_new_tokens=12), 1)
    answer = run(probe)["a", 0]
    assert answer.finish is FinishReason.LENGTH
    assert len(answer.tokens) == 12
    fifth = answer.tokens[4]
    first = answer.tokens.index(fifth)

    e = engine(decoder)
    e.submit("a", [4], replace(SAMPLING, stop_token_ids=(fifth,)), 1)
    stopped = run(e)["a", 0]
    assert stopped.finish is FinishReason.STOP
    assert stopped.tokens == answer.tokens[: first + 1]

    e = EmbeddedEngine(decoder, EngineConfig(), detokenise=lambda tokens: "".join(f"<{t}>" for t in tokens))
    e.submit("a", [4], replace(SAMPLING, stop=("no such", f"<{answer.tokens[2]}><{answer.tokens[3]}>")), 1)
    stopped = run(e)["a", 0]
    assert stopped.finish is FinishReason.STOP
    assert stopped.tokens == answer.tokens[:4]

    e = EmbeddedEngine(decoder, EngineConfig(), detokenise=lambda tokens: bytes(tokens).decode(errors="replace"))
    assert e._says_stop([*b"and so on ", *"🎉🎉🎉".encode()], ("🎉🎉🎉",)), "a token may be less than a character"

    e = engine(tiny_decoder(8, eos_token_id=[40, fifth]))
    e.submit("a", [4], replace(SAMPLING, ignore_eos=False), 1)
    stopped = run(e)["a", 0]
    assert stopped.finish is FinishReason.STOP
    assert stopped.tokens[-1] in (40, fifth)


def test_refusals() -> None:
    e = engine(cache_tokens=64)
    for prompt, sampling, n, says in [
        ([], SAMPLING, 1, "at least one token"),
        ([1], SAMPLING, 0, "n ≥ 1"),
        ([48], SAMPLING, 1, r"0\.\.47"),
        ([1] * 60, SAMPLING, 1, "engine.cache_tokens is 64"),
        ([1] * 500, SAMPLING, 1, "512 positions"),
        ([1], replace(SAMPLING, stop=("x",)), 1, "tokenizer"),
    ]:
        with pytest.raises(EngineError, match=says):
            e.submit("a", prompt, sampling, n)
    assert not e.has_work
    with pytest.raises(EngineError, match="only go up"):
        e.update_weights(0, {})
    with pytest.raises(EngineError, match="not of this model"):
        e.update_weights(1, {"what": torch.zeros(1)})


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_nothing_leaks_whatever_happens(seed: int) -> None:
    """Random lengths, groups, cancellations, updates, a small cache: each request ends once, every block returns."""
    dice = random.Random(seed)
    e = engine(tiny_decoder(0), cache_tokens=256, max_running=dice.randrange(1, 12), step_tokens=dice.randrange(1, 64),
               block_tokens=dice.choice([1, 4, 16]))  # fmt: skip
    alive: dict[str, int] = {}
    for round in range(60):
        if round < 30 and dice.random() < 0.5:
            sampling = Sampling(max_new_tokens=dice.randrange(1, 60), seed=round)
            n = dice.randrange(1, 6)
            e.submit(f"r{round}", [dice.randrange(2, 48) for _ in range(dice.randrange(1, 70))], sampling, n)
            alive[f"r{round}"] = n
        if alive and dice.random() < 0.1:
            id = dice.choice(sorted(alive))
            e.cancel(id)
            del alive[id]
        if dice.random() < 0.1:
            e.update_weights(e.version + 1, dict(tiny_decoder(round).named_parameters()))
        for id, _ in e.step():
            alive[id] -= 1
            if not alive[id]:
                del alive[id]
    for (id, _), _ in run(e).items():
        alive[id] -= 1
    assert not any(alive.values())
    assert e.free_blocks == e._blocks.count
    assert not e._requests


def test_a_prompt_that_was_seen_is_not_read_again_until_the_weights_change() -> None:
    """The prefix cache: across requests, and for the next turn of a conversation; never across versions."""
    decoder = tiny_decoder(3)
    e = engine(tiny_decoder(3), block_tokens=4)
    prompt = [2 + i % 40 for i in range(30)]
    e.submit("a", prompt, replace(SAMPLING, max_new_tokens=13), 2)
    first = run(e)["a", 0]
    assert e.reused_tokens == 0
    e.submit("b", prompt, replace(SAMPLING, max_new_tokens=13), 2)
    assert run(e)["b", 0].tokens == first.tokens
    assert e.reused_tokens == 28
    follow_up = prompt + first.tokens + [7, 8, 9]
    e.submit("c", follow_up, SAMPLING, 1)
    answer = run(e)["c", 0]
    assert e.reused_tokens == 28 + 40, "the whole first turn but its last, partial block"
    expected = recomputed(decoder, follow_up, answer.tokens)
    torch.testing.assert_close(torch.tensor(answer.logprobs), expected, atol=1e-4, rtol=1e-4)
    e.update_weights(1, dict(tiny_decoder(4).named_parameters()))
    e.submit("d", prompt, SAMPLING, 1)
    answer = run(e)["d", 0]
    assert e.reused_tokens == 68, "what older weights computed is worthless"
    expected = recomputed(tiny_decoder(4), prompt, answer.tokens)
    torch.testing.assert_close(torch.tensor(answer.logprobs), expected, atol=1e-4, rtol=1e-4)


def test_what_several_versions_computed_is_not_remembered() -> None:
    """Under `keep` an answer's cache is of two versions: its next turn must not begin with it."""
    e = engine(tiny_decoder(0), on_update="keep", block_tokens=4)
    e.submit("a", [5, 6, 7, 8, 9], SAMPLING, 1)
    for _ in range(12):
        e.step()
    e.update_weights(1, dict(tiny_decoder(5).named_parameters()))
    answer = run(e)["a", 0]
    e.submit("b", [5, 6, 7, 8, 9, *answer.tokens], SAMPLING, 1)
    run(e)
    assert e.reused_tokens == 0
