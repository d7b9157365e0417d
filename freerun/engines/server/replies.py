"""What every route shares: JSON, streams, refusals in the client's dialect, and clients that hang up."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ExceptionHandler, Receive, Scope, Send

from freerun.core import ConfigError, EngineError, FreerunError
from freerun.engines import wire
from freerun.engines.dialects.base import Dialect
from freerun.engines.dialects.chat import ChatDialect
from freerun.engines.dialects.messages import MessagesDialect
from freerun.engines.refused import Refused

T = TypeVar("T")


class ClientGone(Exception):
    """Whoever asked has hung up."""


def json(message: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(wire.encode(message), status, headers, media_type="application/json")


def refusal(
    path: str,
    message: str,
    status: int,
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """In the words of the dialect that is spoken at that path."""
    dialect: Dialect = MessagesDialect() if path.startswith("/v1/messages") else ChatDialect()
    return json(dialect.refusal(message, status, param, code), status, headers)


class Stream(StreamingResponse):
    """Server-sent events, or frames. `close` is called when they end, however they end: a client that hangs up ends
    them."""

    def __init__(
        self, pieces: AsyncIterator[bytes], close: Callable[[], None], media_type: str = "text/event-stream"
    ) -> None:
        super().__init__(pieces, media_type=media_type)
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The work's result; if the client hangs up first, the work is cancelled and ClientGone raised.

    The request's body must have been read: what comes after it is the news that the client is gone.
    """
    working, gone = asyncio.create_task(work), asyncio.create_task(_until_gone(request))
    working.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody may be left to be told
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        working.cancel()
        gone.cancel()
        await asyncio.wait((working, gone))  # it may have to tell an engine


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return refusal(request.url.path, str(error), error.status, error.param, error.code)


async def _impossible(request: Request, error: Exception) -> Response:
    return refusal(request.url.path, str(error), 400)


async def _unreadable(request: Request, error: Exception) -> Response:
    return refusal(request.url.path, f"the request's body: {error}", 400)


async def _not_text(request: Request, error: Exception) -> Response:
    return refusal(request.url.path, f"the request's body is not UTF-8: {error}", 400)


async def _failed(request: Request, error: Exception) -> Response:
    return refusal(request.url.path, str(error), 500, code=type(error).__name__)


async def _unexpected(request: Request, error: Exception) -> Response:
    return refusal(
        request.url.path, f"this server failed, and its log says where: {type(error).__name__}: {error}", 500
    )


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refusal(
        request.url.path,
        f"{error.detail}: {request.method} {request.url.path}",
        error.status_code,
        headers=error.headers,
    )


async def _gone(_: Request, __: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


REFUSALS: dict[Any, ExceptionHandler] = {
    Refused: _refused,
    ConfigError: _impossible,
    EngineError: _impossible,
    msgspec.DecodeError: _unreadable,
    UnicodeDecodeError: _not_text,
    FreerunError: _failed,
    HTTPException: _no_such_route,
    ClientGone: _gone,
    Exception: _unexpected,
}
"""Whatever goes wrong with a request is said in the client's dialect."""
