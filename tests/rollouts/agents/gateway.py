"""A gateway for tests: answers what it is told to, and keeps what was asked."""

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from freerun.rollouts.agents.spec import Access


@dataclass
class Gateway:
    access: Access = field(default_factory=lambda: Access("", "KEY", member=3, attempt=1))
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    """Path, authorization and body of each request."""
    connections: set[Any] = field(default_factory=set)
    status: int = 200
    reply: bytes = b'{"choices": [{"message": {"role": "assistant", "content": "hi"}}]}'

    async def handle(self, request: web.Request) -> web.Response:
        self.asked.append((request.path, request.headers["Authorization"], json.loads(await request.read())))
        self.connections.add(request.transport)
        return web.Response(body=self.reply, status=self.status)


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[Gateway]:
    gateway, app = Gateway(), web.Application()
    app.router.add_post("/{path:.*}", gateway.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    gateway.access = Access(f"http://127.0.0.1:{port}/KEY/v1", "KEY", member=3, attempt=1)
    try:
        yield gateway
    finally:
        await runner.cleanup()
