"""Groups go where the fewest tokens are to be computed first, and never back to an engine that failed them while there
is another."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from freerun.core import EngineError, EngineLost, FinishReason, Version
from freerun.core.reports import EngineStats, UpdateReport, WeightsHandle
from freerun.engines.base import Completion, Sampling
from freerun.engines.beginnings import BLOCK
from freerun.engines.refused import Refused
from freerun.engines.router import Router
from freerun.engines.tracked import SICK_AFTER, TrackedEngine


class Held:
    """An engine whose answers come when the test lets them."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.fails: EngineError | None = None
        self.version: Version = 0

    async def generate(self, prompt: list[int], sampling: Sampling, n: int = 1) -> AsyncIterator[Completion]:
        if self.fails:
            raise self.fails
        for index in range(n):
            if index:
                await self.go.wait()
            yield Completion(index, [1], [0.0], [self.version], FinishReason.STOP)

    async def update_weights(self, handle: WeightsHandle) -> UpdateReport:
        await self.go.wait()
        self.version = handle.version
        return UpdateReport(handle.version, 0.0, 0)

    async def stats(self) -> EngineStats:
        raise AssertionError

    async def health(self) -> Version:
        return self.version


class Routed:
    """A router with three engines that are held, and what was said of them."""

    def __init__(self) -> None:
        self.router = Router()
        self.failing: list[tuple[str, str]] = []
        self.held = {name: Held() for name in ("a", "b", "c")}
        self.engines = {name: TrackedEngine(name, held, self._failing) for name, held in self.held.items()}
        for engine in self.engines.values():
            self.router.add(engine)

    def _failing(self, engine: TrackedEngine, error: EngineError) -> None:
        self.failing.append((engine.name, str(error)))


async def asked(engine: TrackedEngine, tokens: int) -> AsyncIterator[Completion]:
    """Have it owe that many tokens: one of its two answers has come."""
    answers = aiter(engine.generate([1], Sampling(max_new_tokens=tokens), 2))
    await anext(answers)
    return answers


async def test_the_fewest_owed_tokens_come_first() -> None:
    router = Routed().router
    first = await router.choose()
    long = await asked(first, 100)
    assert first.tokens == 100
    second = await router.choose()
    assert second is not first
    _short = await asked(second, 10)
    third = await router.choose()
    assert third not in (first, second)
    _middle = await asked(third, 50)
    assert await router.choose() is second
    await long.aclose()  # type: ignore[attr-defined]
    assert first.tokens == 0, "what was cancelled is not owed"
    assert await router.choose() is first


async def test_groups_that_have_asked_for_nothing_yet_are_spread_too() -> None:
    routed, over = Routed(), asyncio.Event()
    rollouts, chosen = [], []
    for _ in range(6):
        engine = await routed.router.choose()
        chosen.append(engine.name)
        rollouts.append(asyncio.create_task(engine.roll_out(over.wait())))
        await asyncio.sleep(0)
    assert sorted(chosen) == ["a", "a", "b", "b", "c", "c"]
    over.set()
    await asyncio.gather(*rollouts)
    assert [engine.groups for engine in routed.engines.values()] == [0, 0, 0]


async def test_prompts_that_begin_alike_go_where_that_was_read() -> None:
    """Up to the point where the engine owes more than the least loaded by as many tokens as are saved."""
    routed = Routed()
    system = list(range(3 * BLOCK))
    reader = await routed.router.choose([*system, 5, 6])
    for last in range(10):
        assert await routed.router.choose([*system, last]) is reader
    _some = await asked(reader, 3 * BLOCK - 1)
    assert await routed.router.choose([*system, 7]) is reader, "it owes less than the prompt would cost elsewhere"
    _more = await asked(reader, 2)
    assert await routed.router.choose([*system, 7]) is not reader, "it owes more"
    short = routed.router.choose(system[: BLOCK - 1])
    assert await short is not reader, "less than a block is nothing to go back for"


async def test_new_weights_make_what_was_read_worthless() -> None:
    routed = Routed()
    prompt = list(range(2 * BLOCK))
    reader = await routed.router.choose(prompt)
    _owes = await asked(reader, BLOCK)
    assert await routed.router.choose(prompt) is reader
    routed.held[reader.name].go.set()
    report = await reader.take(WeightsHandle("scripted", 1, ""))
    assert report is not None
    assert report.engine == reader.name
    assert await reader.take(WeightsHandle("scripted", 1, "")) is None, "it has that version"
    assert await routed.router.choose(prompt) is not reader


async def test_one_that_failed_is_not_asked_again() -> None:
    router = Routed().router
    first = await router.choose()
    second = await router.choose(but_not=[first])
    third = await router.choose(but_not=[first, second])
    assert len({first, second, third}) == 3
    assert await router.choose(but_not=[first, second, third]) in (first, second, third)


async def test_several_failures_in_a_row_are_told() -> None:
    routed = Routed()
    engine, held = routed.engines["a"], routed.held["a"]

    async def request() -> None:
        with pytest.raises(EngineError):
            _never = [answer async for answer in engine.generate([1], Sampling(max_new_tokens=9), 1)]

    held.fails = Refused("the prompt is too long")
    for _ in range(2 * SICK_AFTER):
        await request()
    assert routed.failing == [], "the request's own fault"
    held.fails = EngineError("no")
    for _ in range(SICK_AFTER - 1):
        await request()
    held.fails = None
    _one = [answer async for answer in engine.generate([1], Sampling(max_new_tokens=9), 1)]
    held.fails = EngineError("no")
    for _ in range(SICK_AFTER - 1):
        await request()
    assert routed.failing == [], "an answer came in between"
    await request()
    assert routed.failing == [("a", "no")]
    held.fails = EngineLost("gone")
    await request()
    assert routed.failing[1:] == [("a", "gone")], "at once"
    assert engine.tokens == 0


async def test_an_answer_by_an_older_version_than_the_engine_had_is_not_taken() -> None:
    routed = Routed()
    engine, held = routed.engines["a"], routed.held["a"]
    held.go.set()
    await engine.take(WeightsHandle("scripted", 3, ""))
    held.version = 0  # it was started again behind its address
    with pytest.raises(EngineError, match="a has answered with version 0, and had 3 before"):
        _never = [answer async for answer in engine.generate([1], Sampling(max_new_tokens=9), 1)]
    assert [name for name, _ in routed.failing] == ["a"]


async def test_there_may_be_no_engine_for_a_while() -> None:
    routed = Routed()
    a, b, c = routed.engines.values()
    for engine in (a, b, c):
        routed.router.take_out(engine)
    choosing = [asyncio.create_task(routed.router.choose()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in choosing)
    routed.router.add(b)
    assert await asyncio.gather(*choosing) == [b, b, b]


async def test_what_depends_on_an_engine_fails_when_it_is_lost() -> None:
    """Whatever the rollout makes of the engine's failures."""
    engine = Routed().engines["a"]

    async def stubborn() -> None:
        while True:
            try:
                _never = [answer async for answer in engine.generate([1], Sampling(max_new_tokens=9), 2)]
            except EngineError:
                await asyncio.sleep(3600)

    rollout = asyncio.create_task(engine.roll_out(stubborn()))
    update = asyncio.create_task(engine.take(WeightsHandle("scripted", 1, "")))
    await asyncio.sleep(0)
    engine.lose("its machine is cut off")
    for waits in (rollout, update):
        with pytest.raises(EngineLost, match="a is lost: its machine is cut off"):
            await asyncio.wait_for(waits, 5)
    with pytest.raises(EngineLost):
        await engine.health()
    assert (engine.tokens, engine.groups) == (0, 0)
