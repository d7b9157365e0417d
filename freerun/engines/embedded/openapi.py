"""What the routes take and answer: `/openapi.json` for programs, `/docs` for people."""

from collections.abc import Sequence
from functools import cache
from typing import Any, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from freerun.core.reports import EngineStats, UpdateReport
from freerun.engines import wire
from freerun.engines.dialects.chat import ChatBody
from freerun.engines.dialects.messages import MessagesBody
from freerun.engines.dialects.parameters import (
    IGNORED,
    MESSAGES_IGNORED,
    MESSAGES_REFUSED,
    REFUSED,
    RESPONSES_IGNORED,
    RESPONSES_REFUSED,
)
from freerun.engines.dialects.responses import ResponsesBody
from freerun.engines.embedded.serving.completions import CompletionBody
from freerun.engines.server.replies import json
from freerun.engines.server.routes import PauseMode

Json = dict[str, Any]


class ErrorDetail(msgspec.Struct):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class Error(msgspec.Struct):
    """How every route refuses; those of Anthropic's have its shape."""

    error: ErrorDetail


_BODIES: dict[str, type] = {
    wire.GENERATE: wire.GenerateRequest,
    "/update_weights": wire.UpdateRequest,
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
    "/v1/responses": ResponsesBody,
    "/v1/messages": MessagesBody,
    "/v1/messages/count_tokens": MessagesBody,
}
_REPLIES: dict[str, type] = {
    wire.GENERATE: wire.GenerateResponse,
    "/update_weights": UpdateReport,
    "/stats": EngineStats,
}
_STREAMS = (wire.GENERATE, "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")
_REST = {
    CompletionBody: (IGNORED, REFUSED),
    ChatBody: (IGNORED, REFUSED),
    ResponsesBody: (RESPONSES_IGNORED, RESPONSES_REFUSED),
    MessagesBody: (MESSAGES_IGNORED, MESSAGES_REFUSED),
}
"""What these take besides their fields, and what they refuse by name."""


_TITLE = "Freerun embedded engine"
_PAGE = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{_TITLE}</title>
<link rel="stylesheet" href="https://cdn.jsdelivr.net/npm/swagger-ui-dist@5/swagger-ui.css">
</head>
<body>
<div id="routes">The description of every route is at <a href="/openapi.json">/openapi.json</a>.</div>
<script src="https://cdn.jsdelivr.net/npm/swagger-ui-dist@5/swagger-ui-bundle.js"></script>
<script>SwaggerUIBundle({{url: "/openapi.json", dom_id: "#routes"}});</script>
</body>
</html>
"""
"""Swagger UI, from the network; without it, a link."""


def description_routes(routes: Sequence[Route]) -> list[Route]:
    """Two more, which describe those."""
    described = cache(lambda: schema_of(routes))

    async def schema(_: Request) -> Response:
        return json(described())

    async def docs(_: Request) -> Response:
        return HTMLResponse(_PAGE)

    return [Route("/openapi.json", schema), Route("/docs", docs)]


def schema_of(routes: Sequence[Route]) -> Json:
    kinds = [*_BODIES.values(), *_REPLIES.values(), Error]
    _, parts = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    for kind, (ignored, refused) in _REST.items():
        part = parts[kind.__name__]
        part["description"] = (
            f"{part.get('description', '')}\n\nTaken, and without effect: {', '.join(ignored)}. "
            f"Refused by name, unless they ask for nothing: {', '.join(refused)}. Any other is refused as unknown."
        )
    paths: Json = {}
    for route in routes:
        paths.setdefault(route.path, {})[_method(route)] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": _TITLE, "version": "1"},
        "paths": paths,
        "components": {"schemas": parts},
    }


def _method(route: Route) -> str:
    return next(method for method in ("post", "delete", "get") if method.upper() in (route.methods or ("GET",)))


def _operation(route: Route) -> Json:
    path = route.path
    operation: Json = {"summary": route.name.replace("_", " ").capitalize(), "operationId": route.name}
    if says := route.endpoint.__doc__:
        operation["description"] = says
    if parameters := _parameters(route):
        operation["parameters"] = parameters
    if body := _BODIES.get(path):
        operation["requestBody"] = {"required": True, "content": _content(body)}
    content = _content(_REPLIES.get(path))
    if path == "/metrics":
        content = {"text/plain": {"schema": {"type": "string"}}}
    if path in _STREAMS:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    operation["responses"] = {
        "200": {"description": "Done", "content": content},
        "4XX": {"description": "Refused", "content": _content(Error)},
    }
    return operation


def _parameters(route: Route) -> list[Json]:
    inside = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in route.param_convertors
    ]
    if route.path != "/pause":
        return inside
    modes = {"type": "string", "enum": list(get_args(PauseMode)), "default": "keep"}
    return [*inside, {"name": "mode", "in": "query", "required": False, "schema": modes}]


def _content(kind: type | None) -> Json:
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"} if kind else {"type": "object"}
    return {"application/json": {"schema": schema}}
