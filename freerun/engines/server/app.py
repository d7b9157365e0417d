"""Routes of an engine, behind HTTP."""

from collections.abc import Sequence

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

from freerun.engines.listening import KEEP_ALIVE_S
from freerun.engines.server.middleware import LimitBodySize, RequireApiKey
from freerun.engines.server.replies import REFUSALS


def app_of(routes: Sequence[Route], api_key: str | None) -> Starlette:
    """`api_key` is asked of every client."""
    key = [Middleware(RequireApiKey, key=api_key)] if api_key else []
    return Starlette(routes=routes, middleware=[*key, Middleware(LimitBodySize)], exception_handlers=REFUSALS)


def server_config(app: Starlette, grace_s: int | None = None) -> uvicorn.Config:
    """`grace_s` is how long a server that is told to end waits for its clients; None: until they are done."""
    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=grace_s,
    )
