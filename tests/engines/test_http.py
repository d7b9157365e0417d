"""An engine on another machine: when it is lost, whoever waits for it is told at once, though the connection stays open
and silent; and its clock is not ours."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing

import pytest

from freerun.core import EngineLost, FinishReason
from freerun.core.clock import Clock
from freerun.core.reports import EngineStats, Span, WeightsHandle
from freerun.engines import wire
from freerun.engines.base import Sampling
from freerun.engines.http import HttpEngine

SAMPLING = Sampling(max_new_tokens=8)
BEGUN = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@asynccontextmanager
async def silent_server(says: bytes = b"", reads: bool = True) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """Takes connections, and says no more than that. The event is set when somebody has connected."""
    connected, writers = asyncio.Event(), []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        if reads:
            await reader.readuntil(b"\r\n\r\n")
        writer.write(says)
        connected.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", connected
    finally:
        with closing(server):
            for writer in writers:
                writer.transport.abort()


async def answers(engine: HttpEngine, prompt_tokens: int = 1) -> object:
    return [answer async for answer in engine.generate([1] * prompt_tokens, SAMPLING, 2)]


CALLS: dict[str, Callable[[HttpEngine], Awaitable[object]]] = {
    "generate": answers,
    "update": lambda engine: engine.update_weights(WeightsHandle("shm", 1, "")),
    "stats": lambda engine: engine.stats(),
    "health": lambda engine: engine.health(),
}


@pytest.mark.parametrize("call", CALLS)
async def test_pending_calls_fail_at_once(call: str) -> None:
    async with silent_server() as (url, connected), HttpEngine(url) as engine:
        waits = asyncio.ensure_future(CALLS[call](engine))
        await connected.wait()
        engine.lose("the machine b is cut off")
        with pytest.raises(EngineLost, match="the machine b is cut off"):
            await asyncio.wait_for(waits, 1)
        with pytest.raises(EngineLost):
            await asyncio.wait_for(CALLS[call](engine), 1)


async def test_answers_that_are_still_to_come_are_not_waited_for() -> None:
    async with silent_server(BEGUN + chunk_of_one_answer()) as (url, _), HttpEngine(url) as engine:
        stream = aiter(engine.generate([1], SAMPLING, 2))
        assert (await anext(stream)).tokens.tolist() == [3, 4]
        waits = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        engine.lose("cut")
        with pytest.raises(EngineLost):
            await asyncio.wait_for(waits, 1)


async def test_a_loss_between_two_answers_is_told_with_the_next() -> None:
    async with silent_server(BEGUN + chunk_of_one_answer()) as (url, _), HttpEngine(url) as engine:
        stream = aiter(engine.generate([1], SAMPLING, 2))
        await anext(stream)
        engine.lose("cut")
        await asyncio.sleep(0)  # whoever reads the first answer is not disturbed
        with pytest.raises(EngineLost):
            await asyncio.wait_for(anext(stream), 1)


def chunk_of_one_answer() -> bytes:
    choice = wire.choice_of(0, [3, 4], [-1.0, -1.0], [0, 0], FinishReason.STOP)
    event = b"data: " + wire.encode(wire.GenerateResponse("1", [choice])) + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(event), event)


async def test_a_request_that_is_not_even_read_is_given_up() -> None:
    """Its body fills every buffer on the way: closing the connection would wait for it to be sent."""
    async with silent_server(reads=False) as (url, connected), HttpEngine(url) as engine:
        waits = asyncio.create_task(answers(engine, prompt_tokens=8_000_000))
        await connected.wait()
        engine.lose("cut")
        with pytest.raises(EngineLost):
            await asyncio.wait_for(waits, 1)


async def test_cancelling_a_call_is_no_loss() -> None:
    async with silent_server() as (url, connected), HttpEngine(url) as engine:
        waits = asyncio.create_task(answers(engine))
        await connected.wait()
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits


async def test_spans_are_by_our_clock() -> None:
    class Ahead(Clock):
        def ours(self, theirs_s: float) -> float:
            return theirs_s - 1000.0

    said = wire.encode(EngineStats(3, 1, 0, 0, 0.0, spans=[Span("generate", "busy", 1005.0, 1006.5)]))
    reply = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(said), said)
    async with silent_server(reply) as (url, _), HttpEngine(url, clock=Ahead()) as engine:
        assert (await engine.stats()).spans == [Span("generate", "busy", 5.0, 6.5)]
