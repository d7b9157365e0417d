"""The embedded engine as a real process, driven over HTTP."""

import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import aiohttp
import pytest
import torch

from freerun.core import EngineError, FinishReason
from freerun.core.reports import EngineStats
from freerun.engines import frames
from freerun.engines.base import Completion, Sampling
from freerun.engines.http import HttpEngine
from freerun.machine.processes import Processes
from freerun.weights.shm import ShmPublisher
from tests.children import child_of
from tests.engines.test_embedded import recomputed
from tests.tiny import engine_settings, tiny_decoder, tiny_folder

SAMPLING = Sampling(max_new_tokens=30, seed=3, ignore_eos=True)


@asynccontextmanager
async def engine(folder: Path) -> AsyncIterator[HttpEngine]:
    model = tiny_folder(folder / "model")
    async with Processes("freerun.run.child", folder) as processes:
        url = await processes.start("engine 0", "engine", engine_settings(model, cache_tokens=4096), 1)
        async with HttpEngine(url) as http:
            yield http


async def collect(answers: AsyncIterator[Completion]) -> list[Completion]:
    return [answer async for answer in answers]


async def until(condition: Callable[[EngineStats], bool], engine: HttpEngine) -> None:
    """AnswerRequest the engine itself until it says so."""
    while not condition(await engine.stats()):
        pass


async def test_a_served_engine(tmp_path: Path) -> None:
    async with engine(tmp_path) as e:
        beside = asyncio.create_task(_an_idle_connection_stays_open(e))
        await _groups_come_back(e)
        await _both_forms_say_the_same(e)
        await _replies_are_sent_at_once(e)
        await _nonsense_is_refused(e)
        await _closing_cancels(e)
        await _paused_it_takes_requests_and_weights(e, tmp_path / "paused")
        await _weights_swap_mid_answer(e, tmp_path)
        await _stop_strings(e)
        await beside


async def _an_idle_connection_stays_open(e: HttpEngine) -> None:
    """For longer than uvicorn would have it: a request on its way would fail with the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(e.url.rsplit(":", 1)[1]))
    for pause_s in (5.5, 0):
        writer.write(b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        await asyncio.sleep(pause_s)
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().split(b"content-length:")[1].split()[0]))
    writer.close()


async def _groups_come_back(e: HttpEngine) -> None:
    groups = await asyncio.gather(*(collect(e.generate([5, 6, 7], replace(SAMPLING, seed=i), 4)) for i in range(5)))
    for group in groups:
        assert sorted(answer.index for answer in group) == [0, 1, 2, 3]
        for answer in group:
            assert len(answer.tokens) == len(answer.logprobs) == len(answer.versions) == 30
            assert answer.finish is FinishReason.LENGTH
            expected = recomputed(tiny_decoder(), [5, 6, 7], answer.tokens.tolist())
            torch.testing.assert_close(torch.tensor(answer.logprobs), expected, atol=1e-4, rtol=1e-4)
    again = await collect(e.generate([5, 6, 7], replace(SAMPLING, seed=2), 4))
    assert {a.index: a.tokens.tolist() for a in again} == {a.index: a.tokens.tolist() for a in groups[2]}


async def _both_forms_say_the_same(e: HttpEngine) -> None:
    """The bytes of the binary form are those that JSON spells out."""
    found, prompt = {}, [5, 6, 7] * 30
    await collect(e.generate(prompt, replace(SAMPLING, max_new_tokens=1)))
    before = await e.stats()
    for accept in (frames.MEDIA_TYPE, "text/event-stream"):
        async with HttpEngine(e.url, accept=accept) as client:
            answers = await collect(client.generate(prompt, replace(SAMPLING, ignore_eos=False), 6))
        found[accept] = sorted(answers, key=lambda answer: answer.index)
    for binary, spelled in zip(*found.values(), strict=True):
        assert binary.index == spelled.index
        assert binary.tokens.tobytes() == spelled.tokens.tobytes()
        assert binary.logprobs.tobytes() == spelled.logprobs.tobytes()
        assert binary.versions == spelled.versions
        assert binary.finish is spelled.finish
        assert 0 < binary.cached == spelled.cached < len(prompt)
    after = await e.stats()
    assert after.prompt_tokens - before.prompt_tokens == 2 * len(prompt)
    assert after.reused_tokens - before.reused_tokens == 2 * binary.cached
    assert await _content_type(e, {"Accept": f"{frames.MEDIA_TYPE}, */*;q=0.5"}) == frames.MEDIA_TYPE
    assert await _content_type(e, {}) == "text/event-stream"
    with_alternatives = {"sampling_params": {"max_tokens": 2, "logprobs": 2}}
    assert await _content_type(e, {"Accept": frames.MEDIA_TYPE}, with_alternatives) == "text/event-stream"


async def _content_type(
    e: HttpEngine, headers: dict[str, str], changes: Mapping[str, object] = MappingProxyType({})
) -> str:
    body = {"request_id": "form", "token_ids": [5], "sampling_params": {"max_tokens": 2}, "stream": True}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{e.url}/inference/v1/generate", json=body | dict(changes), headers=headers) as reply,
    ):
        await reply.read()
        return reply.content_type


async def _replies_are_sent_at_once(e: HttpEngine) -> None:
    """A reply is several packets. A socket that holds back the second until the first is acknowledged waits for the
    kernel's delayed acknowledgement, 40 ms, in nearly every call."""
    took_s = []
    async with HttpEngine(e.url) as on_one_connection:
        for _ in range(11):
            asked_s = time.monotonic()
            await on_one_connection.stats()
            took_s.append(time.monotonic() - asked_s)
    assert statistics.median(took_s) < 0.03


async def _nonsense_is_refused(e: HttpEngine) -> None:
    for prompt, sampling, says in [
        ([], SAMPLING, "at least one token"),
        ([99], SAMPLING, r"0\.\.47"),
        ([1], replace(SAMPLING, max_new_tokens=5000), "positions"),
        ([1], replace(SAMPLING, top_p=0.0), "top_p"),
    ]:
        with pytest.raises(EngineError, match=says):
            await collect(e.generate(prompt, sampling))
    async with aiohttp.ClientSession() as session:
        for body in (b"{", b'{"request_id": "x"}', b'{"request_id": "x", "token_ids": "a", "sampling_params": {}}'):
            async with session.post(f"{e.url}/inference/v1/generate", data=body) as response:
                assert response.status == 400
                assert json.loads(await response.text())["error"]["message"]
        params = {"max_tokens": 3, "n": 2, "ignore_eos": True}
        whole = {"request_id": "w", "token_ids": [4], "sampling_params": params}
        async with session.post(f"{e.url}/inference/v1/generate", json=whole) as response:
            choices = (await response.json())["choices"]
            assert [choice["index"] for choice in choices] == [0, 1]
            assert choices[0]["weight_versions"] == [{"version": "0", "start": 0, "end": 3}]
        async with session.post(f"{e.url}/inference/v1/generate", json=whole | {"stream": True}) as response:
            *events, done = (await response.text()).strip().split("\n\n")
            assert done == "data: [DONE]"
            together = [json.loads(event.removeprefix("data: "))["choices"] for event in events]
            assert len(together) == 1, "answers that end in one step come in one event"
            assert sorted(choice["index"] for choice in together[0]) == [0, 1]


async def _closing_cancels(e: HttpEngine) -> None:
    task = asyncio.create_task(collect(e.generate([5], replace(SAMPLING, max_new_tokens=500), 8)))
    await until(lambda stats: stats.running == 8, e)
    task.cancel()
    await until(lambda stats: stats.running + stats.waiting == 0, e)


async def _paused_it_takes_requests_and_weights(e: HttpEngine, folder: Path) -> None:
    """The order in which vLLM is given new weights: pause, update, resume. And an id in use is refused, unharmed."""
    body = {"request_id": "twice", "token_ids": [5], "sampling_params": {"max_tokens": 9, "ignore_eos": True}}
    async with aiohttp.ClientSession(e.url) as session:
        async with session.post("/pause", params={"mode": "keep", "clear_cache": "true"}) as response:
            assert response.status == 200
        asking = asyncio.create_task(session.post("/inference/v1/generate", json=body))
        await until(lambda stats: stats.waiting == 1, e)
        async with session.post("/inference/v1/generate", json=body) as response:
            assert "already" in await response.text()
        folder.mkdir()
        handle = ShmPublisher(folder).publish(1, dict(tiny_decoder(1).named_parameters()))
        assert (await e.update_weights(handle)).version == 1
        assert not asking.done()
        async with session.post("/resume") as response:
            assert response.status == 200
        async with await asking as response:
            (choice,) = (await response.json())["choices"]
            assert choice["weight_versions"] == [{"version": "1", "start": 0, "end": 9}]


async def _weights_swap_mid_answer(e: HttpEngine, folder: Path) -> None:
    publisher = ShmPublisher(folder)
    answers = asyncio.create_task(collect(e.generate([5, 6], replace(SAMPLING, max_new_tokens=400), 3)))
    for version in (2, 3, 4):
        enough = (await e.stats()).tokens + 60
        await until(partial(_has_sampled, enough), e)
        handle = publisher.publish(version, dict(tiny_decoder(version).named_parameters()))
        report = await e.update_weights(handle)
        assert report.version == version
        assert report.recomputed_tokens > 0
    for answer in await answers:
        assert set(answer.versions) == {1, 2, 3, 4}
        for version in range(1, 5):
            at = [i for i, v in enumerate(answer.versions) if v == version]
            expected = recomputed(tiny_decoder(version), [5, 6], answer.tokens.tolist())[at]
            torch.testing.assert_close(torch.tensor(answer.logprobs)[at], expected, atol=2e-4, rtol=1e-3)
    with pytest.raises(EngineError, match="only go up"):
        await e.update_weights(handle)
    spans = (await e.stats()).spans
    assert {span.track for span in spans} == {"generate", "fetch", "update"}
    assert all(0 <= s.args["waited_s"] <= s.end_s - s.start_s for s in spans if s.track == "generate")


def _has_sampled(tokens: int, stats: EngineStats) -> bool:
    return stats.tokens > tokens


async def _stop_strings(e: HttpEngine) -> None:
    answer = (await collect(e.generate([5, 6], replace(SAMPLING, max_new_tokens=60))))[0]
    sampled = answer.tokens.tolist()
    letters = [t for t in sampled if 2 <= t < 28]
    stop = chr(ord("a") + letters[1] - 2)
    (stopped,) = await collect(e.generate([5, 6], replace(SAMPLING, max_new_tokens=60, stop=(stop,))))
    assert stopped.finish is FinishReason.STOP
    assert stopped.tokens.tolist() == sampled[: sampled.index(letters[1]) + 1]


async def test_an_engine_that_dies_fails_its_requests(tmp_path: Path) -> None:
    async with Processes("freerun.run.child", tmp_path) as processes:
        settings = engine_settings(tiny_folder(tmp_path / "model"))
        async with HttpEngine(await processes.start("engine 0", "engine", settings, 1)) as e:
            asking = asyncio.create_task(collect(e.generate([5], replace(SAMPLING, max_new_tokens=500), 2)))
            await until(lambda stats: stats.running == 2, e)
            child_of(processes).process.kill()
            with pytest.raises(EngineError, match="failed a request"):
                await asking
            with pytest.raises(EngineError, match="failed"):
                await e.stats()
