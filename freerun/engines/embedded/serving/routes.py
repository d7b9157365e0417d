"""What people and their programs ask: models, completions, and conversations in three dialects."""

import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from freerun.engines.dialects.base import Dialect
from freerun.engines.dialects.bodies import read
from freerun.engines.dialects.chat import ChatDialect
from freerun.engines.dialects.messages import MessagesDialect
from freerun.engines.dialects.parameters import IGNORED, REFUSED
from freerun.engines.dialects.responses import ResponsesDialect
from freerun.engines.embedded.serving.completions import CompletionBody
from freerun.engines.embedded.serving.service import Service
from freerun.engines.server.replies import json


def serving_routes(service: Service) -> list[Route]:
    async def completions(request: Request) -> Response:
        return await service.complete(request, read(await request.body(), CompletionBody, IGNORED, REFUSED))

    async def count_tokens(request: Request) -> Response:
        """How many tokens a prompt of these messages has."""
        prompt = await service.prompt_of(MessagesDialect().read(await request.body()))
        return json({"input_tokens": len(prompt.tokens)})

    return [
        *_model_routes(service),
        Route("/v1/completions", completions, methods=["POST"]),
        _conversation_route(service, "/v1/chat/completions", "chat", ChatDialect()),
        _conversation_route(service, "/v1/responses", "responses", ResponsesDialect()),
        *_stored_routes(service),
        _conversation_route(service, "/v1/messages", "messages", MessagesDialect()),
        Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
    ]


def _conversation_route(service: Service, path: str, name: str, dialect: Dialect) -> Route:
    async def answer(request: Request) -> Response:
        return await service.converse(request, dialect, dialect.read(await request.body()))

    return Route(path, answer, methods=["POST"], name=name)


def _model_routes(service: Service) -> list[Route]:
    card = {"id": service.model, "object": "model", "created": int(time.time()), "owned_by": "freerun"}

    async def models(_: Request) -> Response:
        return json({"object": "list", "data": [card | {"max_model_len": service.longest}]})

    async def model(request: Request) -> Response:
        service.check_model(request.path_params["name"])
        return json(card | {"max_model_len": service.longest})

    return [Route("/v1/models", models), Route("/v1/models/{name}", model)]


def _stored_routes(service: Service) -> list[Route]:
    async def stored_response(request: Request) -> Response:
        """A response that was given, unless it was not to be stored."""
        return json(service.responses.get(request.path_params["id"]).reply)

    async def delete_response(request: Request) -> Response:
        id = request.path_params["id"]
        service.responses.delete(id)
        return json({"id": id, "object": "response", "deleted": True})

    return [
        Route("/v1/responses/{id}", stored_response),
        Route("/v1/responses/{id}", delete_response, methods=["DELETE"]),
    ]
