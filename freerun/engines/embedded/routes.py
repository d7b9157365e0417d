"""The token and control routes: what the controller drives. Answers are in vLLM's wire format, or in frames for clients
that accept them."""

from collections.abc import AsyncIterator
from typing import Literal, get_args

import msgspec
from fastapi import FastAPI, Request, Response

from freerun.engines import frames, wire
from freerun.engines.embedded.pending import AnswerPart, AnswerRequest, PendingAnswers
from freerun.engines.embedded.replies import DONE, Refused, Stream, event, json, unless_gone
from freerun.engines.embedded.thread import EngineThread
from freerun.weights.base import Subscriber

PauseMode = Literal["keep", "abort"]


def add_token_routes(app: FastAPI, thread: EngineThread) -> None:
    async def generate(request: Request) -> Response:
        body = msgspec.json.decode(await request.body(), type=wire.GenerateRequest)
        params = body.sampling_params
        if wrong := params.wrong():
            raise Refused(f"sampling_params: {wrong[0]} {wrong[1]}", wrong[0])
        asked = await thread.ask([AnswerRequest(body.request_id, body.token_ids, params.sampling(), params.n)])
        if body.stream and not params.alternatives() and frames.MEDIA_TYPE in request.headers.get("accept", ""):
            return Stream(_frames(asked), asked.close, frames.MEDIA_TYPE)
        if body.stream:
            return Stream(_events(body.request_id, asked), asked.close)
        try:
            choices = await unless_gone(request, _choices(asked))
        finally:
            asked.close()
        return json(wire.GenerateResponse(body.request_id, choices))

    app.add_route(wire.GENERATE, generate, methods=["POST"])  # without FastAPI's look at parameters: this one is hot


async def _events(id: str, asked: PendingAnswers) -> AsyncIterator[bytes]:
    while pieces := await asked.together():
        yield event(wire.GenerateResponse(id, [_choice(piece) for piece in pieces]))
    yield DONE


async def _frames(asked: PendingAnswers) -> AsyncIterator[bytes]:
    async for whole in asked:
        assert whole.finish is not None, "these are not followed, so they come whole"
        yield frames.encode(whole.index, whole.tokens, whole.logprobs, whole.versions, whole.finish)


async def _choices(asked: PendingAnswers) -> list[wire.Choice]:
    return sorted([_choice(piece) async for piece in asked], key=lambda choice: choice.index)


def _choice(whole: AnswerPart) -> wire.Choice:
    assert whole.finish is not None, "these are not followed, so they come whole"
    return wire.choice_of(whole.index, whole.tokens, whole.logprobs, whole.versions, whole.finish, whole.alternatives)


def add_control_routes(app: FastAPI, thread: EngineThread, subscriber: Subscriber) -> None:
    @app.post("/update_weights")
    async def update_weights(request: Request) -> Response:
        body = msgspec.json.decode(await request.body(), type=wire.UpdateRequest)
        return json(await thread.update_weights(body.update_info, subscriber, body.on_update))

    @app.post("/pause")
    async def pause(mode: str = "keep") -> Response:
        """vLLM's `clear_cache` needs no word here: new weights always rebuild the cache, unless `on_update: keep`."""
        if mode not in get_args(PauseMode):
            raise Refused(f"mode is {mode!r}; it can be {' or '.join(get_args(PauseMode))}", "mode")
        await thread.pause(abort=mode == "abort")
        return json({"status": "paused"})

    @app.post("/resume")
    async def resume() -> Response:
        await thread.resume()
        return json({"status": "resumed"})

    @app.get("/is_paused")
    async def is_paused() -> Response:
        return json({"is_paused": thread.paused})

    @app.get("/stats")
    async def stats() -> Response:
        return json(await thread.stats())

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response((await thread.metrics()).prometheus(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health() -> Response:
        """At once: a step may take longer than whoever asks is willing to wait, and an engine that fails ends this."""
        return json({"version": thread.version})
