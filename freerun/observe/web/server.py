"""`freerun watch`: a page over all runs of a folder, live while they go on.

One process beside the runs: it reads their files and nothing else, so that no run notices it. The browser is told by
server-sent events that something changed, and asks for what it shows. Whoever is not on this machine needs the token.
What models wrote leaves here as JSON only.
"""

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import fields
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from freerun.core import FreerunError
from freerun.core.metrics import METRICS, SECTIONS
from freerun.observe.folder import encode
from freerun.observe.page import assets
from freerun.observe.search import SampleFilter
from freerun.observe.view import RunView, differences
from freerun.observe.web.runs import Runs

LOOK_S = 1.0
"""How often a run that somebody watches is looked at."""
COOKIE = "freerun_watch"
LOCAL_NAMES = {"localhost", "127.0.0.1", "[::1]"}
COMPARED = 12
"""Runs side by side, at most."""
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}

T = TypeVar("T")


def app_of(runs: Runs, token: str | None, ending: asyncio.Event) -> Starlette:
    """`token` is asked of every browser. Without one, only names of this machine are answered: a page from elsewhere
    must not reach us through a name that its owner points here. Streams of events end when `ending` is set."""

    def on_run(answer: Callable[[RunView, Request], Any]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            def read() -> bytes:
                with runs.view(request.path_params["run"]) as view:
                    return encode(answer(view, request))

            return _json(await run_in_threadpool(read))

        return endpoint

    async def listed(_: Request) -> Response:
        return _json(await run_in_threadpool(lambda: encode(list_runs(runs))))

    async def compared(request: Request) -> Response:
        names = request.query_params.get("runs", "").split(",")[:COMPARED]

        def read() -> bytes:
            configs = {}
            for name in names:
                with runs.view(name) as view:
                    configs[name] = view.config()
            return encode({"differences": differences(configs)})

        return _json(await run_in_threadpool(read))

    async def events(request: Request) -> Response:
        return StreamingResponse(_events(runs, request, ending), media_type="text/event-stream", headers=_HEADERS)

    async def described(_: Request) -> Response:
        return _json(encode({"metrics": METRICS, "sections": SECTIONS}))

    async def health(_: Request) -> Response:
        return _json(b"{}")

    async def page(_: Request) -> Response:
        return Response(assets.live_page(), media_type="text/html", headers=_HEADERS)

    async def script(_: Request) -> Response:
        return Response(assets.script(), media_type="text/javascript", headers=_HEADERS)

    async def style(_: Request) -> Response:
        return Response(assets.style(), media_type="text/css", headers=_HEADERS)

    return Starlette(
        routes=[
            Route("/", page),
            Route("/health", health),
            Route("/app.js", script),
            Route("/app.css", style),
            Route("/api/metrics", described),
            Route("/api/runs", listed),
            Route("/api/events", events),
            Route("/api/compare", compared),
            Route("/api/runs/{run}", on_run(lambda view, _: view.overview())),
            Route("/api/runs/{run}/curves", on_run(_curves)),
            Route("/api/runs/{run}/timeline", on_run(_timeline)),
            Route("/api/runs/{run}/samples", on_run(_samples)),
            Route("/api/runs/{run}/samples/{id:int}", on_run(lambda view, r: view.sample(r.path_params["id"]))),
            Route("/api/runs/{run}/task", on_run(lambda view, r: view.task(r.query_params.get("task", "")))),
        ],
        middleware=[
            Middleware(Doorkeeper, token=token),
            Middleware(GZipMiddleware, minimum_size=4096, compresslevel=1),
        ],
        exception_handlers={FreerunError: _said, BadQuery: _said},
    )


def list_runs(runs: Runs) -> dict[str, Any]:
    rows = []
    for name in runs.names():
        try:
            with runs.view(name) as view:
                rows.append(view.brief())
        except (FreerunError, OSError) as error:  # deleted, or not to be read: the others are shown
            rows.append({"name": name, "state": "unreadable", "problems": [str(error)], "spark": []})
    return {"root": str(runs.root.resolve()), "runs": rows, "only": runs.only}


async def _events(runs: Runs, request: Request, ending: asyncio.Event) -> AsyncIterator[bytes]:
    """Whenever the run that is asked for, or any where none is, has moved on: its step, its state, what it does."""
    wanted = request.query_params.get("run")
    told: dict[str, Any] = {}

    def look() -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in [wanted] if wanted else runs.names():
            try:
                with runs.view(name) as view:
                    found[name] = view.live()
            except (FreerunError, OSError):
                found[name] = {"state": "gone"}
        return found

    yield b"retry: 2000\n\n"
    while not ending.is_set() and not await request.is_disconnected():
        now = await run_in_threadpool(look)
        changed = {name: state for name, state in now.items() if told.get(name) != state}
        changed |= {name: {"state": "gone"} for name in told.keys() - now.keys()}
        yield b"data: " + encode(changed) + b"\n\n" if changed else b": still here\n\n"
        told = now
        with suppress(TimeoutError):
            await asyncio.wait_for(ending.wait(), LOOK_S)


class BadQuery(Exception):
    """A question that the page never asks."""


def _number(request: Request, name: str, kind: Callable[[str], T]) -> T | None:
    text = request.query_params.get(name)
    if not text:
        return None
    try:
        return kind(text)
    except ValueError:
        raise BadQuery(f"{name} must be a number, not {text!r:.50}") from None


def _curves(view: RunView, request: Request) -> Any:
    names = request.query_params.get("names")
    first, last = (_number(request, name, int) for name in ("first", "last"))
    points = _number(request, "points", int)
    return view.curves(names.split(",") if names else None, first, last, *([min(points, 20_000)] if points else []))


def _timeline(view: RunView, request: Request) -> Any:
    width = min(_number(request, "width", int) or 1200, 4000)
    return view.timeline(_number(request, "from", float), _number(request, "to", float), width)


def _samples(view: RunView, request: Request) -> Any:
    asked = {name: value for name, value in request.query_params.items() if value}
    before, limit = _number(request, "before", int), _number(request, "limit", int)
    given = {f.name: asked[f.name] for f in fields(SampleFilter) if f.name in asked}
    try:
        wanted = msgspec.convert(given, SampleFilter, strict=False)
    except msgspec.ValidationError as error:
        raise BadQuery(f"that is no filter: {error}") from None
    return view.samples(wanted, before, limit or 50)


def _json(content: bytes, status: int = 200) -> Response:
    return Response(content, status, media_type="application/json", headers=_HEADERS)


async def _said(_: Request, error: Exception) -> Response:
    """What is wrong becomes a message on the page."""
    return _json(encode({"error": str(error)}), 404)


class Doorkeeper:
    """Lets in who knows the token, by the address's `?token=` once and by a cookie from then on; without a token, who
    asks by a name of this machine."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        if self._token is None:
            allowed = request.headers.get("host", "").rsplit(":", 1)[0].lower() in LOCAL_NAMES
            said = "this page is only for this machine: open it as http://localhost"
            answer = None if allowed else Response(said, 403, media_type="text/plain")
        else:
            answer = self._asked(request, self._token)
        await (answer or self._app)(scope, receive, send)

    def _asked(self, request: Request, token: str) -> Response | None:
        given = request.query_params.get("token")
        if given is not None and _same(given, token):
            entered = RedirectResponse(request.url.path, 303)
            entered.set_cookie(COOKIE, token, httponly=True, samesite="strict", max_age=30 * 86_400)
            return entered
        if _same(request.cookies.get(COOKIE, ""), token) or _same(
            request.headers.get("authorization", "").removeprefix("Bearer "), token
        ):
            return None
        return Response("open the address that `freerun watch` printed, with its token", 403, media_type="text/plain")


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())
