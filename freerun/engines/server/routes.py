"""The token and control routes: what the controller drives. Answers are in vLLM's wire format, or in frames for clients
that accept them."""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Literal, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from freerun.core import EngineError
from freerun.engines import frames, wire
from freerun.engines.dialects.events import DONE, event
from freerun.engines.refused import Refused
from freerun.engines.server.base import ServerEngine
from freerun.engines.server.pending import AnswerPart, AnswerRequest, PendingAnswers
from freerun.engines.server.replies import Stream, json, unless_gone
from freerun.weights.base import Subscriber

PauseMode = Literal["keep", "abort"]


def token_routes(engine: ServerEngine) -> list[Route]:
    async def generate(request: Request) -> Response:
        body = msgspec.json.decode(await request.body(), type=wire.GenerateRequest)
        params = body.sampling_params
        if wrong := params.wrong():
            raise Refused(f"sampling_params: {wrong[0]} {wrong[1]}", wrong[0])
        asked = await engine.ask([AnswerRequest(body.request_id, body.token_ids, params.sampling(), params.n)])
        if body.stream and not params.alternatives() and frames.MEDIA_TYPE in request.headers.get("accept", ""):
            return Stream(_frames(asked), asked.close, frames.MEDIA_TYPE)
        if body.stream:
            return Stream(_events(body.request_id, asked), asked.close)
        try:
            choices = await unless_gone(request, _choices(asked))
        finally:
            asked.close()
        return json(wire.GenerateResponse(body.request_id, choices))

    return [Route(wire.GENERATE, generate, methods=["POST"])]


async def _events(id: str, asked: PendingAnswers) -> AsyncIterator[bytes]:
    """An engine that fails meanwhile ends them: a client that misses answers knows."""
    with suppress(EngineError):
        while pieces := await asked.together():
            yield event(wire.GenerateResponse(id, [_choice(piece) for piece in pieces]))
        yield DONE


async def _frames(asked: PendingAnswers) -> AsyncIterator[bytes]:
    """As `_events`."""
    with suppress(EngineError):
        async for whole in asked:
            assert whole.finish is not None, "these are not followed, so they come whole"
            parts = whole.tokens, whole.logprobs, whole.versions, whole.finish, whole.cached, whole.routes
            yield frames.encode(whole.index, *parts)


async def _choices(asked: PendingAnswers) -> list[wire.Choice]:
    return sorted([_choice(piece) async for piece in asked], key=lambda choice: choice.index)


def _choice(whole: AnswerPart) -> wire.Choice:
    assert whole.finish is not None, "these are not followed, so they come whole"
    return wire.choice_of(
        index=whole.index,
        tokens=whole.tokens,
        logprobs=whole.logprobs,
        versions=whole.versions,
        finish=whole.finish,
        alternatives=whole.alternatives,
        cached=whole.cached,
        routes=whole.routes,
    )


def control_routes(engine: ServerEngine, subscriber: Subscriber | None) -> list[Route]:
    """Without a subscriber only those that change nothing."""

    async def update_weights(request: Request) -> Response:
        assert subscriber is not None
        body = msgspec.json.decode(await request.body(), type=wire.UpdateRequest)
        return json(await engine.update_weights(body.update_info, subscriber, body.on_update))

    async def pause(request: Request) -> Response:
        """vLLM's `clear_cache` needs no word here: new weights always rebuild the cache, unless `on_update: keep`."""
        mode = request.query_params.get("mode", "keep")
        if mode not in get_args(PauseMode):
            raise Refused(f"mode is {mode!r}; it can be {' or '.join(get_args(PauseMode))}", "mode")
        await engine.pause(abort=mode == "abort")
        return json({"status": "paused"})

    async def resume(_: Request) -> Response:
        await engine.resume()
        return json({"status": "resumed"})

    async def is_paused(_: Request) -> Response:
        return json({"is_paused": engine.paused})

    async def stats(_: Request) -> Response:
        return json(await engine.stats())

    async def metrics(_: Request) -> Response:
        return Response(await engine.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def health(_: Request) -> Response:
        """At once: a step may take longer than whoever asks is willing to wait, and an engine that fails ends this."""
        return json({"version": engine.version})

    async def model(_: Request) -> Response:
        """The `config.json` of the model: what a run looks at before it uses an engine that was given by URL."""
        return json(engine.shape.raw)

    posts = (update_weights, pause, resume) if subscriber is not None else ()
    gets = (is_paused, stats, metrics, health, model)
    return [
        *(Route(f"/{endpoint.__name__}", endpoint, methods=["POST"]) for endpoint in posts),
        *(Route(f"/{endpoint.__name__}", endpoint) for endpoint in gets),
    ]
