"""The engine in this process: the same answers whether awaited or not, together or alone."""

import asyncio
from dataclasses import replace

import pytest

from freerun import Completion, EngineConfig, EngineError, InProcessEngine, Sampling
from tests.tiny import tiny_decoder

PROMPTS = [[3, 4, 5], [6, 7], [8]]
SAMPLING = Sampling(max_new_tokens=12, seed=7)


def engine() -> InProcessEngine:
    return InProcessEngine(tiny_decoder(1), EngineConfig(cache_tokens=2048))


async def awaited(on: InProcessEngine, prompt: list[int], n: int = 2) -> list[Completion]:
    found = [completion async for completion in on.generate(prompt, SAMPLING, n)]
    return sorted(found, key=lambda completion: completion.index)


def tokens_of(completions: list[Completion]) -> list[list[int]]:
    return [completion.tokens.tolist() for completion in completions]


def test_awaited_or_not_in_one_loop_after_another() -> None:
    at_once = engine().answer_all([(prompt, SAMPLING, 2) for prompt in PROMPTS])

    async def together(on: InProcessEngine) -> list[list[Completion]]:
        return await asyncio.gather(*(awaited(on, prompt) for prompt in PROMPTS))

    on = engine()
    for _ in range(2):
        assert [tokens_of(found) for found in asyncio.run(together(on))] == [tokens_of(found) for found in at_once]


async def test_whoever_leaves_costs_nobody_else_anything() -> None:
    on = engine()
    leaving = on.generate([3], replace(SAMPLING, max_new_tokens=400, ignore_eos=True), 4)
    waits = asyncio.ensure_future(anext(leaving))
    await asyncio.sleep(0.01)
    expected = engine().answer_all([(PROMPTS[0], SAMPLING, 2)])[0]
    other = asyncio.create_task(awaited(on, PROMPTS[0]))
    waits.cancel()
    assert tokens_of(await other) == tokens_of(expected)
    with pytest.raises(asyncio.CancelledError):
        await waits
    await leaving.aclose()  # type: ignore[attr-defined]
    assert (await on.stats()).running == 0


async def test_new_weights_and_refusals() -> None:
    on, other = engine(), tiny_decoder(2)
    before = await awaited(on, PROMPTS[0])
    on.swap_weights(1, dict(other.named_parameters()))
    after = await awaited(on, PROMPTS[0])
    assert {*before[0].versions, *after[0].versions} == {0, 1}
    assert tokens_of(before) != tokens_of(after)
    with pytest.raises(EngineError, match="versions only go up"):
        on.swap_weights(1, dict(other.named_parameters()))
    with pytest.raises(EngineError, match="token ids must lie"):
        await awaited(on, [1000])
    assert await awaited(on, PROMPTS[0])
