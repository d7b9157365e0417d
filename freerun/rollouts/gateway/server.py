"""The gateway: where agents ask the policy, in whichever dialect their clients speak.

One HTTP server in the controller's process. A session has a key that nobody can guess; it is given as the API key, or
as the beginning of the URL's path, for clients that have no place for a key. The model's name decides what becomes of
an answer: `policy` is trained on, `policy-fixed` is served only.

Consumes requests; produces replies, whole or as events. Waits for the session's engine. A client that hangs up ends its
request.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from secrets import token_hex

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from freerun.engines.base import Client
from freerun.engines.dialects.base import ChatRequest, Dialect
from freerun.engines.dialects.chat import ChatDialect
from freerun.engines.dialects.messages import MessagesDialect
from freerun.engines.dialects.responses import ResponsesDialect
from freerun.engines.listening import KEEP_ALIVE_S, Where, listen, url_of
from freerun.engines.refused import Refused
from freerun.engines.server.replies import ClientGone, json, unless_gone
from freerun.rollouts.agents.spec import Access
from freerun.rollouts.gateway.prompts import SessionRules
from freerun.rollouts.gateway.session import Reply, Session, SessionEnded

POLICY, FIXED = "policy", "policy-fixed"
_REMEMBERED = 10_000
"""Ended sessions whose late requests are told so."""
_MOST_BYTES = 64 * 2**20
_CLOSING_S = 1.0
_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
"""Taken in, so that those which a route does not have are refused in the dialect's shape."""


class Gateway:
    """Has a `session` for each member. Knows nothing of agents' processes."""

    def __init__(self) -> None:
        self.url = ""
        self._sessions: dict[str, Session] = {}
        self._ended: dict[str, None] = {}
        self._dialects: dict[str, Dialect] = {
            "chat/completions": ChatDialect(),
            "responses": ResponsesDialect(),
            "messages": MessagesDialect(),
        }

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, host: str = "127.0.0.1", around: Callable[[ASGIApp], ASGIApp] = lambda app: app
    ) -> AsyncIterator["Gateway"]:
        """Listening on a free port. `around` may put something around its application, to watch it."""
        gateway = cls()
        with listen(Where(host)) as listening:
            listening.listen(2048)
            gateway.url = url_of(listening)
            server = _Server(_config(around(gateway.app)))
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            try:
                yield gateway
            finally:
                for session in list(gateway._sessions.values()):
                    session.close()
                await _ended(server.server_state.tasks)
                server.should_exit = server.force_exit = True
                await serving

    @contextmanager
    def session(self, rules: SessionRules, client: Client, name: str) -> Iterator[Session]:
        """A session, until the block ends; then its requests are cancelled, and later ones refused."""
        session = Session(token_hex(16), rules, client, name)
        self._sessions[session.key] = session
        try:
            yield session
        finally:
            session.close()
            del self._sessions[session.key]
            self._ended[session.key] = None
            while len(self._ended) > _REMEMBERED:
                del self._ended[next(iter(self._ended))]

    def access(self, session: Session, member: int = 0, attempt: int = 0) -> Access:
        return Access(f"{self.url}/{session.key}/v1", session.key, member, attempt)

    @property
    def app(self) -> Starlette:
        return Starlette(
            routes=[Route("/{path:path}", self._answer, methods=_METHODS)],
            exception_handlers={Exception: _failed},
        )

    async def _answer(self, request: Request) -> Response:
        key, route = _key_and_route(request, lambda key: key in self._sessions or key in self._ended)
        dialect = self._dialects.get(route.removesuffix("/count_tokens"), self._dialects["chat/completions"])
        try:
            return await self._routed(request, self._session(key), route)
        except Refused as error:
            body = dialect.refusal(str(error), error.status, error.param, error.code)
            return json(body, error.status)
        except (ClientGone, ClientDisconnect, asyncio.CancelledError):  # the last: the gateway closes
            return Response(status_code=499)  # nobody reads it

    def _session(self, key: str) -> Session:
        if session := self._sessions.get(key):
            return session
        if key in self._ended:
            raise SessionEnded
        raise Refused(
            "the API key is no session's: use session.base_url and session.api_key", code="invalid_api_key", status=401
        )

    async def _routed(self, request: Request, session: Session, route: str) -> Response:
        if route == "models" or route.startswith("models/"):
            return _models(route)
        if route.startswith("responses/"):
            return _stored(request, session, route.removeprefix("responses/"))
        if request.method != "POST":
            raise Refused(f"{route!r} is asked with POST, not {request.method}", status=405)
        body = await _body(request)
        if route == "reward":
            return _reward(session, body)
        if route == "messages/count_tokens":
            return json({"input_tokens": await session.count(self._dialects["messages"].read(body))})
        if dialect := self._dialects.get(route):
            return await self._asked(request, session, dialect, body)
        raise Refused(f"there is no route {route!r} here: {', '.join(self._dialects)}, models, reward", status=404)

    async def _asked(self, request: Request, session: Session, dialect: Dialect, body: bytes) -> Response:
        asked = dialect.read(body)
        session.responses.resolve(asked)
        reply = await unless_gone(request, _answer_of(asked, session, _is_retry(request)))
        if await request.is_disconnected():
            session.hung_up(reply)
            raise ClientGone
        wants_ids = getattr(asked.body, "return_token_ids", False)
        prompt = reply.prompt.tolist() if wants_ids else range(len(reply.prompt))  # to others, its length is told
        about = asked, reply.id, asked.model or POLICY, int(time.time()), prompt, session.word
        whole = dialect.writer(*about).whole(reply.said, reply.usage)
        session.responses.keep(asked, reply.said[0], whole)
        if not asked.stream:
            return json(whole)
        writer = dialect.writer(*about)
        pieces = [writer.opening(), *map(writer.piece, reply.said), writer.closing(reply.usage)]
        return Response(b"".join(pieces), media_type="text/event-stream")


async def _answer_of(asked: ChatRequest, session: Session, is_retry: bool) -> Reply:
    """The model's name decides."""
    if asked.model in (None, POLICY):
        return await session.ask(asked, is_retry=is_retry)
    if asked.model == FIXED:
        return await session.serve(asked)
    raise Refused(
        f"there is no model {asked.model!r} here: ask for {POLICY!r}, which learns (session.model), or {FIXED!r}, "
        "which is served only",
        "model",
        "model_not_found",
        404,
    )


def _key_and_route(request: Request, is_known: Callable[[str], bool]) -> tuple[str, str]:
    """Who asks, and for what. Clients put `/v1` behind a base URL that has it already, or leave it out."""
    parts = [part for part in request.path_params["path"].split("/") if part]
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    key = request.headers.get("x-api-key") or (bearer if scheme.lower() == "bearer" else "")
    if parts and parts[0] != "v1" and (is_known(parts[0]) or not is_known(key)):
        key = parts.pop(0)
    while parts and parts[0] == "v1":
        parts.pop(0)
    return key, "/".join(parts)


def _is_retry(request: Request) -> bool:
    """What the clients of OpenAI and Anthropic say when they ask again."""
    return request.headers.get("x-stainless-retry-count", "0") != "0"


async def _ended(requests: Collection[asyncio.Task[None]]) -> None:
    """Those of closed sessions end when the engine has been told; one that is still sending its body is cut off."""
    for _ in range(2):
        if requests:
            _, left = await asyncio.wait(list(requests), timeout=_CLOSING_S)
            for request in left:
                request.cancel()


async def _failed(_: Request, error: Exception) -> Response:
    """A bug of ours. Its traceback goes to the log besides."""
    said = f"the gateway failed, and the run's log says where: {type(error).__name__}: {error}"
    return json(ChatDialect().refusal(said, 500), 500)


async def _body(request: Request) -> bytes:
    pieces, size = [], 0
    async for piece in request.stream():
        pieces.append(piece)
        size += len(piece)
        if size > _MOST_BYTES:
            raise Refused(f"the request's body is larger than {_MOST_BYTES >> 20} MiB", status=413)
    return b"".join(pieces)


def _stored(request: Request, session: Session, id: str) -> Response:
    if request.method == "DELETE":
        session.responses.delete(id)
        return json({"id": id, "object": "response", "deleted": True})
    return json(session.responses.get(id).reply)


class _Reward(msgspec.Struct):
    reward: float
    response: str | None = None


def _reward(session: Session, body: bytes) -> Response:
    try:
        given = msgspec.json.decode(body, type=_Reward)
    except msgspec.DecodeError as error:
        raise Refused(f"a reward is {{reward: a finite number, response: an id or null}}: {error}", "reward") from None
    session.reward(given.reward, given.response)
    return json({})


def _models(route: str) -> Response:
    cards = [{"id": name, "object": "model", "created": 0, "owned_by": "freerun"} for name in (POLICY, FIXED)]
    if route == "models":
        return json({"object": "list", "data": cards})
    for card in cards:
        if route == f"models/{card['id']}":
            return json(card)
    raise Refused(f"there is no {route}", "model", "model_not_found", 404)


class _Server(uvicorn.Server):
    """Ctrl-C is the run's, not the server's."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _config(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", timeout_keep_alive=KEEP_ALIVE_S)
