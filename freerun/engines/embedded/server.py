"""The embedded engine behind HTTP.

The engine runs in a thread of its own; the event loop parses and writes. What the loop wants of the engine (submit,
cancel, swap weights) is a function that the thread calls between two steps.
"""

import asyncio
import os
import queue
import socket
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from freerun.core import EngineError, FreerunError
from freerun.engines import wire
from freerun.engines.base import Completion, EngineStats, Span, UpdateReport
from freerun.engines.config import EngineConfig
from freerun.engines.embedded.engine import EmbeddedEngine
from freerun.models.checkpoint import load_decoder
from freerun.models.tokenizer import load_tokenizer
from freerun.weights.base import Subscriber, WeightsHandle

T = TypeVar("T")
_SPAN_S = 0.5
"""A busy stretch is reported in pieces of about this length."""


class EngineThread:
    """Steps the engine while it has work.

    Consumes calls; produces completions on each request's queue; waits for calls when there is nothing to do; is
    unblocked by any call. Its failure ends the process: a half-dead engine helps nobody.
    """

    def __init__(self, engine: EmbeddedEngine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._answers: dict[str, asyncio.Queue[Completion]] = {}
        self._spans: list[Span] = []
        self._busy_since_s: float | None = None
        self._tokens_then = 0
        self.idle_s = 0.0
        threading.Thread(target=self._run, name="engine", daemon=True).start()

    async def call(self, function: Callable[[], T]) -> T:
        """Have the engine's thread call this between two steps."""
        future: Future[T] = Future()
        self._calls.put((function, future))
        return await asyncio.wrap_future(future)

    async def generate(self, request: wire.GenerateRequest) -> AsyncIterator[Completion]:
        params, id = request.sampling_params, request.request_id
        answers = self._answers[id] = asyncio.Queue()
        try:
            await self.call(lambda: self._engine.submit(id, request.token_ids, params.sampling(), params.n))
            for _ in range(params.n):
                yield await answers.get()
        finally:
            del self._answers[id]
            self._calls.put((lambda: self._engine.cancel(id), Future()))

    async def update_weights(self, handle: WeightsHandle, subscriber: Subscriber) -> UpdateReport:
        """Fetch first, while generation goes on; only the swap happens between two steps."""
        tensors = await asyncio.to_thread(subscriber.fetch, handle)

        def swap() -> UpdateReport:
            self._end_span()
            start_s = time.monotonic()
            report = self._engine.update_weights(handle.version, tensors)
            args = {"version": float(handle.version), "recomputed_tokens": float(report.recomputed_tokens)}
            self._spans.append(Span("update", f"version {handle.version}", start_s, time.monotonic(), args))
            return replace(report, idle_s=self.idle_s)

        return await self.call(swap)

    async def stats(self) -> EngineStats:
        def snapshot() -> EngineStats:
            self._end_span()
            engine, spans = self._engine, self._spans
            self._spans = []
            return EngineStats(engine.version, engine.running, engine.waiting, engine.tokens, self.idle_s, spans)

        return await self.call(snapshot)

    def _run(self) -> None:
        try:
            while True:
                self._answer_calls()
                if self._busy_since_s is None:
                    self._busy_since_s, self._tokens_then = time.monotonic(), self._engine.tokens
                self._post(self._engine.step())
                if time.monotonic() - self._busy_since_s > _SPAN_S:
                    self._end_span()
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def _answer_calls(self) -> None:
        """All that are there; without work, wait for some."""
        while not (self._calls.empty() and self._engine.has_work):
            if not self._engine.has_work:
                self._end_span()
            start_s = time.monotonic()
            function, future = self._calls.get()
            self.idle_s += time.monotonic() - start_s
            self._answer(function, future)

    def _answer(self, function: Callable[[], Any], future: "Future[Any]") -> None:
        try:
            future.set_result(function())
        except FreerunError as error:
            future.set_exception(error)

    def _post(self, ended: list[tuple[str, Completion]]) -> None:
        for id, completion in ended:
            self._loop.call_soon_threadsafe(self._deliver, id, completion)

    def _deliver(self, id: str, completion: Completion) -> None:
        if id in self._answers:
            self._answers[id].put_nowait(completion)

    def _end_span(self) -> None:
        if self._busy_since_s is not None:
            now_s, tokens = time.monotonic(), self._engine.tokens - self._tokens_then
            args = {"tokens": float(tokens), "running": float(self._engine.running)}
            self._spans.append(Span("generate", "generate", self._busy_since_s, now_s, args))
            self._busy_since_s = None


def app_of(thread: EngineThread, subscriber: Subscriber) -> FastAPI:
    app = FastAPI(title="Freerun embedded engine")

    @app.exception_handler(EngineError)
    async def refuse(_: Request, error: EngineError) -> Response:
        return _json({"error": {"message": str(error), "type": "invalid_request"}}, 400)

    @app.exception_handler(msgspec.DecodeError)
    async def unreadable(_: Request, error: msgspec.DecodeError) -> Response:
        return _json({"error": {"message": f"the request's body: {error}", "type": "invalid_request"}}, 400)

    @app.exception_handler(FreerunError)
    async def failed(_: Request, error: FreerunError) -> Response:
        return _json({"error": {"message": str(error), "type": type(error).__name__}}, 500)

    @app.post(wire.GENERATE)
    async def generate(request: Request) -> Response:
        body = msgspec.json.decode(await request.body(), type=wire.GenerateRequest)
        answers = thread.generate(body)
        if not body.stream:
            choices = sorted([wire.choice_of(answer) async for answer in answers], key=lambda choice: choice.index)
            return _json(wire.GenerateResponse(body.request_id, choices))
        first = await anext(answers)  # so that a refusal is a status code, not a broken stream
        return StreamingResponse(_events(body.request_id, first, answers), media_type="text/event-stream")

    @app.post("/update_weights")
    async def update_weights(request: Request) -> Response:
        info = msgspec.json.decode(await request.body(), type=dict[str, WeightsHandle])
        return _json(await thread.update_weights(info["update_info"], subscriber))

    @app.get("/stats")
    async def stats() -> Response:
        return _json(await thread.stats())

    @app.get("/health")
    async def health() -> Response:
        return _json({"version": (await thread.stats()).version})

    return app


async def _events(id: str, first: Completion, rest: AsyncIterator[Completion]) -> AsyncIterator[bytes]:
    yield _event(id, first)
    async for completion in rest:
        yield _event(id, completion)
    yield b"data: [DONE]\n\n"


def _event(id: str, completion: Completion) -> bytes:
    return b"data: " + wire.encode(wire.GenerateResponse(id, [wire.choice_of(completion)])) + b"\n\n"


def _json(message: Any, status: int = 200) -> Response:
    return Response(wire.encode(message), status, media_type="application/json")


async def serve(folder: Path, config: EngineConfig, subscriber: Subscriber, ready: Callable[[str], None]) -> None:
    """Load the model, serve it on a free port of the loopback address, and say where once it answers."""
    torch.set_num_threads(config.threads)
    decoder = load_decoder(folder, getattr(torch, config.dtype))
    engine = EmbeddedEngine(decoder, config, detokeniser(folder))
    app = app_of(EngineThread(engine, asyncio.get_running_loop()), subscriber)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off"))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(2048)
        ready(f"http://127.0.0.1:{listening.getsockname()[1]}")
        await server.serve(sockets=[listening])


def detokeniser(folder: Path) -> Callable[[list[int]], str] | None:
    """Tokens to text, for stop strings; the tokenizer is loaded when the first one is asked for."""
    if not (folder / "tokenizer.json").is_file():
        return None
    tokenizer: Any = None

    def text(tokens: list[int]) -> str:
        nonlocal tokenizer
        tokenizer = tokenizer or load_tokenizer(folder)
        decoded: str = tokenizer.decode(tokens)
        return decoded

    return text
