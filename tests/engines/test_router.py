"""Groups go where the fewest tokens are owed, and never back to an engine that failed them while there is another."""

import asyncio
from collections.abc import AsyncIterator

from freerun.core import EngineError, FinishReason
from freerun.core.reports import EngineStats, UpdateReport, WeightsHandle
from freerun.engines.base import Completion, Sampling
from freerun.engines.router import Router


class Held:
    """An engine whose answers come when the test lets them."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.fails = False

    async def generate(self, prompt: list[int], sampling: Sampling, n: int = 1) -> AsyncIterator[Completion]:
        if self.fails:
            raise EngineError("it fails")
        for index in range(n):
            if index:
                await self.go.wait()
            yield Completion(index, [1], [0.0], [0], FinishReason.STOP)

    async def update_weights(self, handle: WeightsHandle) -> UpdateReport:
        raise AssertionError

    async def stats(self) -> EngineStats:
        raise AssertionError


async def test_the_fewest_owed_tokens_come_first() -> None:
    router = Router([Held(), Held(), Held()])
    first = router.choose()
    long = aiter(first.generate([1], Sampling(max_new_tokens=100), 2))
    await anext(long)
    assert first.tokens == 100, "one of its two answers has come"
    second = router.choose()
    assert second is not first
    short = aiter(second.generate([1], Sampling(max_new_tokens=10), 2))
    await anext(short)
    third = router.choose()
    assert third not in (first, second)
    await anext(aiter(third.generate([1], Sampling(max_new_tokens=50), 2)))
    assert router.choose() is second
    await long.aclose()  # type: ignore[attr-defined]
    assert first.tokens == 0, "what was cancelled is not owed"
    assert router.choose() is first


async def test_one_that_failed_is_not_asked_again() -> None:
    engines = [Held(), Held()]
    router = Router(engines)
    first = router.choose()
    assert router.choose(but_not=[first]) is not first
    assert router.choose(but_not=[first, router.choose(but_not=[first])]) in (first, router.choose(but_not=[first]))
    for engine in engines:
        engine.fails = True
    try:
        await anext(aiter(first.generate([1], Sampling(max_new_tokens=100), 2)))
        raise AssertionError
    except EngineError:
        assert first.tokens == 0
