"""The embedded engine behind HTTP: vLLM's token and control routes, and those of people's clients.

The engine runs in a thread of its own (`thread.py`); the event loop parses and writes.
"""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from freerun.engines.config import EngineConfig
from freerun.engines.embedded.load import load_for_engine
from freerun.engines.embedded.openapi import description_routes
from freerun.engines.embedded.served import ServedEngine
from freerun.engines.embedded.serving.routes import serving_routes
from freerun.engines.embedded.serving.service import Service
from freerun.engines.embedded.serving.tokenizer import Tokenizer
from freerun.engines.embedded.thread import EngineThread
from freerun.engines.listening import Where, is_loopback, listen, url_of
from freerun.engines.server.app import app_of as server_app
from freerun.engines.server.app import server_config
from freerun.engines.server.routes import control_routes, token_routes
from freerun.machine.machines import LOOPBACK
from freerun.models.checkpoint import Common
from freerun.models.shape import AdapterShape, Backend
from freerun.models.tokenizer import has_tokenizer, refuse_of_another_model
from freerun.weights.base import Subscriber

_LAST_STEP_S, _LAST_WORDS_S = 0.3, 0.4
"""After Ctrl-C: how long the step in progress is waited for, and then clients that read slowly."""


class _Server(uvicorn.Server):
    """Told to end, it first ends the answers being written, so that who waits for them gets what there is. Whoever does
    not take that in a moment is cut off."""

    def __init__(self, config: uvicorn.Config, thread: EngineThread) -> None:
        super().__init__(config)
        self._engine_thread = thread

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._engine_thread.abort_all(within_s=_LAST_STEP_S)
        closing = asyncio.create_task(super().shutdown(sockets))
        await asyncio.wait({closing}, timeout=_LAST_WORDS_S)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await closing


async def serve(
    folder: Path,
    config: EngineConfig,
    subscriber: Subscriber,
    ready: Callable[[str], None],
    host: str = LOOPBACK,
    where: Where | None = None,
    api_key: str | None = None,
    backend: Backend = "auto",
    adapter: AdapterShape | None = None,
    common: Common | None = None,
) -> None:
    """Load the model, serve it, and say where once it answers.

    Without `where`, on a free port of `host`, for a run: there, answers cut short by the end of the process must fail,
    not look like the policy's own. With it, for people. `api_key` is asked of every client. Without one, nobody beyond
    this machine can reach what changes the engine: its weights, and whether it goes on. `adapter` and `common`: see
    `load_for_engine`.
    """
    with listen(where or Where(host)) as listening:
        changed_by = subscriber if api_key or is_loopback(listening) else None
        tokenizer = Tokenizer(folder)
        loading = asyncio.to_thread(_engine, folder, config, backend, adapter, common)
        if where:  # a run may never need a tokenizer; people need it at once, and it takes as long as the model
            engine, loaded = await asyncio.gather(loading, asyncio.to_thread(tokenizer.load))
            refuse_of_another_model(loaded, folder, engine.shape.vocab_size)
        else:
            engine = await loading
        name = folder.resolve().name
        await serve_engine(engine, tokenizer, name, listening, changed_by, ready, where is not None, api_key)


async def serve_engine(
    engine: ServedEngine,
    tokenizer: Tokenizer,
    name: str,
    listening: socket.socket,
    subscriber: Subscriber | None,
    ready: Callable[[str], None],
    for_people: bool = False,
    api_key: str | None = None,
) -> None:
    """An engine that is there already, on that socket."""
    thread = EngineThread(engine, asyncio.get_running_loop())
    service = Service(thread, tokenizer, name, engine.longest, engine.eos_token_ids)
    server = _server(thread, app_of(service, subscriber, api_key), for_people)
    listening.listen(2048)
    ready(url_of(listening))
    try:
        await server.serve(sockets=[listening])
    finally:
        thread.stop(within_s=_LAST_STEP_S if for_people else None)


def app_of(service: Service, subscriber: Subscriber | None, api_key: str | None) -> Starlette:
    routes = [*token_routes(service.thread), *control_routes(service.thread, subscriber), *serving_routes(service)]
    return server_app([*routes, *description_routes(routes)], api_key)


def _engine(
    folder: Path,
    config: EngineConfig,
    backend: Backend = "auto",
    adapter: AdapterShape | None = None,
    common: Common | None = None,
) -> ServedEngine:
    decoder = load_for_engine(folder, config, backend, adapter, common)
    engine = ServedEngine(decoder, config, _detokeniser(folder))
    engine.warm_up()
    return engine


def _server(thread: EngineThread, app: Starlette, for_people: bool) -> uvicorn.Server:
    config = server_config(app, grace_s=1 if for_people else None)
    return _Server(config, thread) if for_people else uvicorn.Server(config)


def _detokeniser(folder: Path) -> Callable[[list[int]], str] | None:
    """Tokens to text, for stop strings: a tokenizer of the engine thread's own, loaded with the first of them."""
    return Tokenizer(folder).decode if has_tokenizer(folder) else None
