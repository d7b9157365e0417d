"""What `/openapi.json` says of the routes whose bodies are read without FastAPI's look at them."""

from typing import Any

import msgspec
from fastapi import FastAPI

from freerun.core.reports import EngineStats, UpdateReport
from freerun.engines import wire
from freerun.engines.embedded.openai.parameters import IGNORED, REFUSED
from freerun.engines.embedded.openai.requests import ChatBody, CompletionBody

Json = dict[str, Any]


class ErrorDetail(msgspec.Struct):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class Error(msgspec.Struct):
    """How every route refuses."""

    error: ErrorDetail


_BODIES: dict[str, type] = {
    wire.GENERATE: wire.GenerateRequest,
    "/update_weights": wire.UpdateRequest,
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
}
_REPLIES: dict[str, type] = {
    wire.GENERATE: wire.GenerateResponse,
    "/update_weights": UpdateReport,
    "/stats": EngineStats,
}
_STREAMS = (wire.GENERATE, "/v1/completions", "/v1/chat/completions")
_REST = (
    f"\n\nTaken, and without effect: {', '.join(IGNORED)}. Refused by name, unless they ask for nothing: "
    f"{', '.join(REFUSED)}. Any other is refused as unknown."
)


def describe(app: FastAPI) -> None:
    """Complete the schema that FastAPI makes, when somebody first asks for it."""
    plain = app.openapi

    def complete() -> Json:
        if app.openapi_schema is None:
            app.openapi_schema = _completed(plain())
        return app.openapi_schema

    app.openapi = complete  # type: ignore[method-assign]


def _completed(schema: Json) -> Json:
    kinds = [*_BODIES.values(), *_REPLIES.values(), Error]
    _, parts = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    for name in ("CompletionBody", "ChatBody"):
        parts[name]["description"] = parts[name].get("description", "") + _REST
    schema.setdefault("components", {}).setdefault("schemas", {}).update(parts)
    paths = schema["paths"]
    paths[wire.GENERATE] = {"post": {"summary": "Generate", "operationId": "generate", "responses": {}}}
    for path, item in paths.items():
        for operation in item.values():
            _say(operation, path)
    return schema


def _say(operation: Json, path: str) -> None:
    if body := _BODIES.get(path):
        operation["requestBody"] = {"required": True, "content": _content(body)}
    replies = operation["responses"]
    replies["200"] = {"description": "Done", "content": _content(_REPLIES.get(path))}
    if path == "/metrics":
        replies["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
    if path in _STREAMS:
        replies["200"]["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    replies.pop("422", None)  # FastAPI's own kind of refusal, which no route here uses
    replies["4XX"] = {"description": "Refused", "content": _content(Error)}


def _content(kind: type | None) -> Json:
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"} if kind else {"type": "object"}
    return {"application/json": {"schema": schema}}
