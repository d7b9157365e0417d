"""A client of another maker's server: JSON in, JSON or server-sent events out. Whatever fails is an EngineError."""

from collections.abc import AsyncGenerator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Self

import aiohttp
import msgspec

from freerun.core import EngineError
from freerun.engines.http import event_data

_NONE: Mapping[str, str] = MappingProxyType({})
_LOOK_S = 5.0
"""How long a look at whether it answers may take. What it is asked to do may take as long as it does."""


class ServerClient:
    """An async context manager. `name` is what the server is called in messages."""

    def __init__(self, name: str, url: str, key: str | None) -> None:
        self.name = name
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0),  # shorter than uvicorn's: see `http.py`
            timeout=aiohttp.ClientTimeout(total=None, connect=30),
            read_bufsize=2**20,
            headers=self._headers,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def answers(self, route: str) -> bool:
        """Whether it answers there in short time, and not with an error of its own."""
        try:
            wait = aiohttp.ClientTimeout(total=_LOOK_S)
            async with self._session.get(self.url + route, timeout=wait) as response:
                return response.status < 500
        except (TimeoutError, aiohttp.ClientError):
            return False

    async def status(self, route: str) -> int:
        """The HTTP status with which it answers a GET there."""
        try:
            async with self._session.get(self.url + route) as response:
                return response.status
        except (TimeoutError, aiohttp.ClientError) as error:
            raise self._failed(route, error) from None

    async def get(self, route: str, query: Mapping[str, str] = _NONE) -> bytes:
        return await self._call("GET", route, None, query)

    async def post(self, route: str, body: Any = None, query: Mapping[str, str] = _NONE) -> bytes:
        return await self._call("POST", route, body, query)

    async def events(self, route: str, body: Any) -> AsyncGenerator[bytes, None]:
        """The data of each event. Closing the iterator closes the connection, which tells the server that nobody
        listens any more."""
        try:
            async with self._session.post(self.url + route, **_sent(body)) as response:
                await self._check(route, response)
                async for data in event_data(response):
                    yield data
        except (TimeoutError, aiohttp.ClientError) as error:
            raise self._failed(route, error) from None

    async def _call(self, method: str, route: str, body: Any, query: Mapping[str, str]) -> bytes:
        try:
            async with self._session.request(method, self.url + route, params=query, **_sent(body)) as response:
                await self._check(route, response)
                return await response.read()
        except (TimeoutError, aiohttp.ClientError) as error:
            raise self._failed(route, error) from None

    async def _check(self, route: str, response: aiohttp.ClientResponse) -> None:
        if response.status >= 400:
            said = " ".join((await response.text()).split())[:500]
            raise EngineError(f"{self.name} refused {route} ({response.status}): {said}")

    def _failed(self, route: str, error: Exception) -> EngineError:
        return EngineError(f"{self.name} at {self.url} failed {route}: {error or type(error).__name__}")


def _sent(body: Any) -> dict[str, Any]:
    if body is None:
        return {}
    return {"data": msgspec.json.encode(body), "headers": {"Content-Type": "application/json"}}


class HttpBackend:
    """What backends have in common: an async context manager that holds the connection to its server."""

    NAME: ClassVar[str]

    def __init__(self, url: str, key: str | None = None) -> None:
        self._http = ServerClient(self.NAME, url, key)

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.__aexit__()

    async def answers(self) -> bool:
        return await self._http.answers("/health")
