"""What a request passes before a route sees it: the API key, and how large it may be.

ASGI middleware, not of Starlette's BaseHTTPMiddleware, which would stand between a stream and the news of its client's
end.
"""

import hmac

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from freerun.engines.refused import Refused
from freerun.engines.server.replies import refusal

MOST_BYTES = 64 * 2**20
"""How large a request's body may be: room for a million tokens, or for more text than that."""


class RequireApiKey:
    """Every route but /health wants `Authorization: Bearer KEY`, or `x-api-key: KEY`, as Anthropic's clients send."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != "/health":
            headers = dict(scope["headers"])
            scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
            given = bearer if scheme.lower() == b"bearer" and bearer else headers.get(b"x-api-key", b"")
            if not given:
                message = "no API key was sent, and this server needs one: send the header Authorization: Bearer KEY"
                await _unauthorized(message, "missing_api_key", scope, receive, send)
                return
            if not hmac.compare_digest(given, self._key):
                message = "the API key that was sent is wrong: send the one that this server was started with"
                await _unauthorized(message, "invalid_api_key", scope, receive, send)
                return
        await self._app(scope, receive, send)


async def _unauthorized(message: str, code: str, scope: Scope, receive: Receive, send: Send) -> None:
    await refusal(scope["path"], message, 401, code=code, headers={"WWW-Authenticate": "Bearer"})(scope, receive, send)


class LimitBodySize:
    """Nobody fills the memory: a body that is too large is refused as soon as that shows."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        read = 0

        async def receive_some() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > MOST_BYTES:
                raise Refused(f"the request's body is larger than {MOST_BYTES >> 20} MiB", status=413)
            return message

        await self._app(scope, receive_some, send)
