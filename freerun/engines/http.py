"""An engine behind HTTP, wherever it lives: what the controller talks to."""

import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import aiohttp
import msgspec

from freerun.core import EngineError, EngineLost, Version
from freerun.core.clock import Clock
from freerun.core.lost import Losable
from freerun.core.reports import EngineStats, UpdateReport, WeightsHandle
from freerun.engines import frames, wire
from freerun.engines.base import Completion, Sampling
from freerun.engines.config import OnUpdate
from freerun.engines.refused import Refused

T = TypeVar("T")

_KEEP_ALIVE_S = 2.0
"""Shorter than servers have it (uvicorn 5 s, unless told otherwise): one that a server closes just as the next request
goes out fails that request."""


class HttpEngine:
    """An async context manager. No time-outs of its own on answers: how long is too long is the controller's to say.
    `key` is what the engine asks of its clients, if anything; `clock` that of its machine. Answers are asked for in the
    binary form of `frames.py`, unless `accept` says otherwise, and taken in whichever form the engine has."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        accept: str = f"{frames.MEDIA_TYPE}, */*;q=0.5",
        clock: Clock | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._clock = clock or Clock()
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._accept = {"Accept": accept}
        self.on_update: OnUpdate | None = None
        """What an update does to running answers, instead of the engine's own setting."""
        self._chunks = msgspec.json.Decoder(wire.GenerateResponse)
        self._losable = Losable(EngineLost)
        self._answering: set[aiohttp.ClientResponse] = set()
        """What answers come by. To watch each of them by `_losable` would cost as much as reading it."""

    async def __aenter__(self) -> "HttpEngine":
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, connect=30),
            read_bufsize=2**20,
            headers=self._headers,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    def lose(self, why: str) -> None:
        """It is gone: whatever waits for it fails at once with EngineLost, however silent the connection is, and so
        does what is asked later."""
        self._losable.lose(why)
        for response in self._answering:
            response.content.set_exception(EngineLost(why))

    async def generate(self, prompt: list[int], sampling: Sampling, n: int = 1) -> AsyncIterator[Completion]:
        request = wire.request_of(uuid.uuid4().hex, prompt, sampling, n)
        url, body, left = self.url + wire.GENERATE, wire.encode(request), n
        with self._failures("a request"):
            async with self._losable.unless_lost():
                response = await self._session.post(url, data=body, headers=self._accept)
            self._answering.add(response)
            try:
                async with response:
                    await _check(response)
                    binary = response.content_type == frames.MEDIA_TYPE
                    longest = sampling.max_new_tokens
                    answers = frames.read(response.content, longest, len(prompt)) if binary else self._decoded(response)
                    async for completion in answers:
                        left -= 1
                        yield completion
            finally:
                self._answering.discard(response)
        if left:
            raise EngineError(f"the engine at {self.url} ended a request with {left} of {n} answers missing")

    async def _decoded(self, response: aiohttp.ClientResponse) -> AsyncIterator[Completion]:
        """The answers from vLLM's JSON, each as its last chunk comes."""
        answers = wire.Answers()
        async for line in event_data(response):
            for choice in self._chunks.decode(line).choices:
                if completion := answers.add(choice):
                    yield completion

    async def update_weights(self, handle: WeightsHandle) -> UpdateReport:
        return await self._call("POST", "/update_weights", UpdateReport, wire.UpdateRequest(handle, self.on_update))

    async def stats(self) -> EngineStats:
        """Its spans are by our clock."""
        stats, ours = await self._call("GET", "/stats", EngineStats), self._clock.ours
        stats.spans = [replace(span, start_s=ours(span.start_s), end_s=ours(span.end_s)) for span in stats.spans]
        return stats

    async def health(self) -> Version:
        return (await self._call("GET", "/health", wire.Health)).version

    async def _call(self, method: str, route: str, result: type[T], body: Any = None) -> T:
        with self._failures(route):
            async with (
                self._losable.unless_lost(),
                self._session.request(method, self.url + route, data=wire.encode(body)) as response,
            ):
                await _check(response)
                return msgspec.json.decode(await response.read(), type=result)

    @contextmanager
    def _failures(self, what: str) -> Iterator[None]:
        """Those of the connection, and of what came by it, are the engine's."""
        try:
            yield
        except (TimeoutError, aiohttp.ClientError, msgspec.DecodeError) as error:
            raise EngineError(f"the engine at {self.url} failed {what}: {error or type(error).__name__}") from None


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status >= 400:
        told = f"the engine refused a request ({response.status}): {(await response.text())[:500]}"
        raise EngineError(told) if response.status >= 500 else Refused(told, status=response.status)


async def event_data(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The data of each server-sent event. Lines may be longer than any buffer, so they are put together here."""
    rest = b""
    async for piece in response.content.iter_any():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data: ") and line != b"data: [DONE]":
                yield line[6:]
