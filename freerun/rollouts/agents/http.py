"""Requests of an agent that awaits: one client for all sessions of a worker, so that connections stay open."""

import asyncio
from typing import Any

import aiohttp

from freerun.core import EngineError

_clients: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}
KEPT_S = 4.0
"""For which an idle connection is kept: less than a server's usual 5 s, which closes it just when it is used again."""


async def post(url: str, body: Any, headers: dict[str, str]) -> tuple[int, bytes]:
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        _clients[loop] = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None),  # the session's deadline is the only one
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_S),
        )
    try:
        async with _clients[loop].post(url, json=body, headers=headers) as reply:
            return reply.status, await reply.read()
    except aiohttp.ClientError as error:
        raise EngineError(f"the session's gateway cannot be reached: {type(error).__name__}: {error}") from None


async def close() -> None:
    """The client of this loop: for programs that go on after their sessions."""
    if client := _clients.pop(asyncio.get_running_loop(), None):
        await client.close()
