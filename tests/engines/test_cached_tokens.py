"""What an engine says of each answer's prompt: how much of it was in its cache."""

from dataclasses import replace

import pytest

from freerun.engines.base import Sampling
from freerun.engines.config import EngineConfig
from freerun.engines.embedded.engine import EmbeddedEngine
from freerun.engines.embedded.in_process import InProcessEngine
from freerun.engines.embedded.sequence import EndedAnswer
from tests.engines.ahead import AheadRunner
from tests.engines.test_embedded import run
from tests.tiny import tiny_decoder

BLOCK = 4
SAMPLING = Sampling(max_new_tokens=9, seed=3, ignore_eos=True)
SAID = [7, 8, 9, 10, 11, 12]
"""What somebody says between two answers."""


def engine(cache_tokens: int = 2048) -> EmbeddedEngine:
    config = EngineConfig(cache_tokens=cache_tokens).on("cpu", block_tokens=BLOCK)
    return EmbeddedEngine(tiny_decoder(3), config)


def full_blocks(tokens: int) -> int:
    return tokens // BLOCK * BLOCK


def ask(e: EmbeddedEngine, prompt: list[int], n: int = 1, id: str = "a") -> list[EndedAnswer]:
    e.submit(id, prompt, SAMPLING, n)
    done = run(e)
    return [done[id, index] for index in range(n)]


@pytest.mark.parametrize("ahead", [False, True])
def test_a_turn_finds_prompt_and_answer_of_the_turn_before(ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if ahead:
        monkeypatch.setattr("freerun.engines.embedded.engine.PlainRunner", AheadRunner)
    e = engine()
    prompt, asked, found = [2 + i % 40 for i in range(21)], 0, 0
    before = 0
    for _ in range(10):
        (answer,) = ask(e, prompt)
        assert answer.cached == full_blocks(max(before - 1, 0)), "all but the last token, which was only sampled"
        asked, found = asked + len(prompt), found + answer.cached
        before = len(prompt) + len(answer.tokens)
        prompt = [*prompt, *answer.tokens, *SAID]
    assert (e.prompt_tokens, e.reused_tokens) == (asked, found)
    assert found / asked > 0.8


def test_the_last_token_is_computed_even_if_all_is_known() -> None:
    e = engine()
    prompt = [2 + i % 40 for i in range(4 * BLOCK)]
    assert ask(e, prompt)[0].cached == 0
    assert ask(e, prompt)[0].cached == 3 * BLOCK, "the last block would leave nothing to compute"
    assert ask(e, [*prompt, 5])[0].cached == 4 * BLOCK
    assert ask(e, [5])[0].cached == 0


def test_each_of_several_answers_is_found_by_its_own_next_turn() -> None:
    e = engine()
    prompt = [2 + i % 40 for i in range(18)]
    answers = ask(e, prompt, n=3)
    assert [answer.cached for answer in answers] == [0, 0, 0]
    for number, answer in enumerate(answers):
        e.submit(f"turn {number}", [*prompt, *answer.tokens, *SAID], SAMPLING, 2)
    found = {at: answer.cached for at, answer in run(e).items()}
    assert set(found.values()) == {full_blocks(len(prompt) + 9 - 1)}
    assert e.reused_tokens == 3 * full_blocks(len(prompt) + 9 - 1), "once a prompt, however many its answers"


def test_a_prompt_that_gave_way_is_not_said_to_have_been_cached() -> None:
    e = engine(cache_tokens=160)
    prompts = {str(number): [2 + (number * 7 + i) % 40 for i in range(21)] for number in range(6)}
    for id, prompt in prompts.items():
        e.submit(id, prompt, replace(SAMPLING, max_new_tokens=60), 2)
    done = run(e)
    assert e.preemptions > 0
    assert {answer.cached for answer in done.values()} == {0}
    assert e.reused_tokens == 0


def test_new_weights_find_nothing() -> None:
    e = engine()
    (answer,) = ask(e, [2 + i % 40 for i in range(21)])
    e.update_weights(1, dict(tiny_decoder(4).named_parameters()))
    (after,) = ask(e, [2 + i % 40 for i in range(21)] + answer.tokens)
    assert after.cached == 0


async def test_it_comes_with_the_completion_and_with_the_figures() -> None:
    on = InProcessEngine(tiny_decoder(1), EngineConfig(cache_tokens=2048).on("cpu", block_tokens=BLOCK))
    prompt = [2 + i % 40 for i in range(4 * BLOCK + 1)]
    first = [completion.cached async for completion in on.generate(prompt, SAMPLING, 2)]
    second = [completion.cached async for completion in on.generate(prompt, SAMPLING, 2)]
    assert (first, second) == ([0, 0], [16, 16])
    stats = await on.stats()
    assert (stats.prompt_tokens, stats.reused_tokens) == (34, 16)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_prompt_that_many_ask_at_the_same_time_is_read_once(ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the members of a group do, each with a session of its own. What each answers does not change by it."""
    if ahead:
        monkeypatch.setattr("freerun.engines.embedded.engine.PlainRunner", AheadRunner)
    shared = [2 + i % 40 for i in range(100)]
    prompts = {f"{member}": [*shared, *range(2, 6 + member)] for member in range(6)}
    alone = {id: ask(engine(), prompt)[0].tokens for id, prompt in prompts.items()}
    e = engine()
    for id, prompt in prompts.items():
        e.submit(id, prompt, SAMPLING, 1)
    done = run(e)
    assert {id: done[id, 0].tokens for id in prompts} == alone
    assert e.reused_tokens == 5 * full_blocks(len(shared))


def test_nobody_waits_for_a_reader_that_is_gone() -> None:
    e = engine()
    shared = [2 + i % 40 for i in range(3000)]
    e.submit("first", shared[:400], SAMPLING, 1)
    e.submit("second", shared[:401], SAMPLING, 1)
    e.step()
    e.cancel("first")
    assert len(run(e)["second", 0].tokens) == SAMPLING.max_new_tokens
    e.submit("third", shared[100:400], SAMPLING, 1)
    e.submit("fourth", shared[100:400], SAMPLING, 1)
    e.step()
    e.update_weights(1, dict(tiny_decoder(4).named_parameters()))
    assert {id for id, _ in run(e)} == {"third", "fourth"}
