"""`on_update: finish`: the answers that run when new weights come finish with the old ones, and no other begins."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from freerun.core import EngineError, FinishReason, WeightsError
from freerun.core.reports import UpdateReport, WeightsHandle
from freerun.engines.base import Sampling
from freerun.engines.config import EngineConfig
from freerun.engines.embedded.served import ServedEngine
from freerun.engines.embedded.thread import EngineThread
from freerun.engines.http import HttpEngine
from freerun.engines.server.pending import AnswerPart, AnswerRequest, PendingAnswers
from freerun.machine.processes import Processes
from freerun.weights.base import Subscriber
from freerun.weights.shm import ShmPublisher
from tests.engines.ahead import AheadRunner
from tests.engines.test_embedded import recomputed
from tests.engines.test_server import collect
from tests.tiny import engine_settings, tiny_decoder, tiny_folder

SAMPLING = Sampling(max_new_tokens=60, seed=11, ignore_eos=True)


class Decoders(Subscriber):
    """A subscriber: version v is the decoder made from the seed v."""

    def fetch(self, handle: WeightsHandle) -> dict[str, Tensor]:
        return dict(tiny_decoder(handle.version).named_parameters())


@asynccontextmanager
async def running_thread(step_tokens: int | None = None, **config: object) -> AsyncIterator[EngineThread]:
    settings = EngineConfig.model_validate({"on_update": "finish"} | config)
    engine = ServedEngine(tiny_decoder(0), settings.on("cpu", step_tokens=step_tokens))
    thread = EngineThread(engine, asyncio.get_running_loop())
    try:
        yield thread
    finally:
        thread.stop()


def update(thread: EngineThread, version: int) -> "asyncio.Task[UpdateReport]":
    return asyncio.create_task(thread.update_weights(WeightsHandle("test", version, ""), Decoders()))


async def until(condition: Callable[[], bool], thread: EngineThread) -> None:
    while not await thread.call(condition):
        pass


def _has_sampled(thread: EngineThread, tokens: int) -> bool:
    return thread._engine.tokens > tokens


def _waiting(thread: EngineThread, swaps: int) -> bool:
    return len(thread._swaps) == swaps


async def pieces(asked: PendingAnswers) -> list[AnswerPart]:
    return [piece async for piece in asked]


async def test_weights_that_changed_while_they_were_swapped_in_are_refused() -> None:
    class Overtaken(Decoders):
        def confirm(self, handle: WeightsHandle) -> None:
            raise WeightsError(f"version {handle.version} is gone")

    async with running_thread(on_update="keep") as thread:
        with pytest.raises(WeightsError, match="version 1 is gone"):
            await thread.update_weights(WeightsHandle("test", 1, ""), Overtaken())


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("cache_tokens", [4096, 256])
async def test_every_answer_is_of_one_version(ahead: bool, cache_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of which some run and some wait, updates in a row; with the small cache, answers that gave way when the
    update came finish before it too."""
    if ahead:
        monkeypatch.setattr("freerun.engines.embedded.engine.PlainRunner", AheadRunner)
    async with running_thread(max_running=6, cache_tokens=cache_tokens, step_tokens=32) as thread:
        engine = thread._engine
        asks = [AnswerRequest(f"r{i}", [3, 4, 5 + i], replace(SAMPLING, seed=i), 8) for i in range(3)]
        answers = asyncio.create_task(pieces(await thread.ask(asks)))
        for version in (1, 2):
            await until(partial(_has_sampled, thread, engine.tokens + 100), thread)
            if cache_tokens == 256:
                await until(lambda: engine.preemptions > 0, thread)
            report = await update(thread, version)
            assert (report.version, report.recomputed_tokens) == (version, 0)
            assert report.pause_s < 0.5, "the pause is the swap's alone"
        ended = await answers
        assert not await thread.call(lambda: engine._scheduler.holding)
    assert len(ended) == 24
    assert {version for piece in ended for version in piece.versions} == {0, 1, 2}
    for piece in ended:
        assert len(piece.tokens) == 60
        (version,) = set(piece.versions)
        expected = recomputed(tiny_decoder(version), [3, 4, 5 + int(piece.id[1:])], piece.tokens)
        torch.testing.assert_close(torch.tensor(piece.logprobs), expected, atol=2e-4, rtol=1e-3)


async def test_updates_that_cannot_be_do_not_hold_the_engine() -> None:
    async with running_thread(max_running=2) as thread:
        answers = asyncio.create_task(pieces(await thread.ask([AnswerRequest("a", [5], SAMPLING, 4)])))
        await until(lambda: thread._engine.running == 2, thread)
        queued = []
        for count, version in enumerate((3, 3, 9), start=1):
            queued.append(update(thread, version))
            await until(partial(_waiting, thread, count), thread)
        first, stale, gone = queued
        gone.cancel()
        assert (await first).version == 3
        with pytest.raises(EngineError, match="only go up"):
            await stale
        assert len(await answers) == 4


async def test_cancelling_the_running_answers_lets_the_weights_in() -> None:
    async with running_thread(max_running=2) as thread:
        long = await thread.ask([AnswerRequest("long", [5], replace(SAMPLING, max_new_tokens=500), 2)])
        await until(lambda: thread._engine.running == 2, thread)
        swap = update(thread, 1)
        await until(partial(_waiting, thread, 1), thread)
        answers = asyncio.create_task(pieces(await thread.ask([AnswerRequest("next", [6], SAMPLING, 1)])))
        assert not swap.done()
        long.close()
        assert (await swap).version == 1
        (answer,) = await answers
        assert set(answer.versions) == {1}


async def test_a_paused_engine_says_why_it_cannot_wait() -> None:
    async with running_thread() as thread:
        answers = asyncio.create_task(
            pieces(await thread.ask([AnswerRequest("a", [5], replace(SAMPLING, max_new_tokens=500))]))
        )
        await until(lambda: thread._engine.running == 1, thread)
        await thread.pause()
        with pytest.raises(EngineError, match="resume it first"):
            await update(thread, 1)
        await thread.pause(abort=True)
        assert (await update(thread, 1)).version == 1
        (answer,) = await answers
        assert answer.finish is FinishReason.ABORT
        await thread.resume()


async def test_a_served_engine_lets_answers_finish(tmp_path: Path) -> None:
    """As a setting of the process; and, for one update, asked for otherwise."""
    settings = engine_settings(tiny_folder(tmp_path / "model"), max_running=4, on_update="finish")
    publisher = ShmPublisher(tmp_path)
    async with (
        Processes("freerun.run.child", tmp_path) as processes,
        HttpEngine(await processes.start("engine 0", "engine", settings, 1)) as engine,
    ):

        async def update() -> UpdateReport:
            while (await engine.stats()).running < 4:
                pass
            version = (await engine.stats()).version + 1
            return await engine.update_weights(
                publisher.publish(version, dict(tiny_decoder(version).named_parameters()))
            )

        answers = asyncio.create_task(collect(engine.generate([5, 6], replace(SAMPLING, max_new_tokens=300), 6)))
        assert (await update()).recomputed_tokens == 0
        assert [set(answer.versions) for answer in await answers] == [{0}] * 4 + [{1}] * 2
        engine.on_update = "recompute"
        answers = asyncio.create_task(collect(engine.generate([5, 6], replace(SAMPLING, max_new_tokens=300), 4)))
        assert (await update()).recomputed_tokens > 0
        assert [set(answer.versions) for answer in await answers] == [{1, 2}] * 4
