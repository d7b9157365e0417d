"""An engine of another maker as a process of the run: its server, started by us or given by URL, behind our routes."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Never

import uvicorn

from freerun.core import ConfigError, EngineError, EngineLost
from freerun.engines.config import ResolvedEngineConfig
from freerun.engines.external.base import Backend, Launch
from freerun.engines.external.front import Front
from freerun.engines.external.kinds import backend_of, python_of
from freerun.engines.external.program import Program
from freerun.engines.external.versions import VersionFolders
from freerun.engines.listening import Where, listen, url_of
from freerun.engines.server.app import app_of, server_config
from freerun.engines.server.routes import control_routes, token_routes
from freerun.machine.machines import LOOPBACK
from freerun.models.shape import Shape, read_shape
from freerun.weights.base import Subscriber

_POLL_S = 0.25
_SAY_S = 10.0
"""How often the log says that we still wait for the server to start."""
_LOOK_S, _LOOKS = 1.0, 5
"""How often we look whether a server that was given by URL still answers, and how often in a row it may not."""

Driven = tuple[Backend, Callable[[], Coroutine[Any, Any, Never]]]
"""A server that answers, and what raises when it does not any more."""


async def serve_front(
    model: Path,
    config: ResolvedEngineConfig,
    subscriber: Subscriber,
    ready: Callable[[str], None],
    host: str = LOOPBACK,
    scratch: Path | None = None,
    api_key: str | None = None,
    server_key: str | None = None,
) -> None:
    """Serve until the server behind us ends or cannot be trusted any more, which is raised.

    `scratch` is where versions are written for that server to load. `server_key` is what a server that was given by
    URL asks of its clients; `api_key` is what we ask of ours.
    """
    shape = read_shape(model)
    with listen(Where(host)) as listening, tempfile.TemporaryDirectory(prefix="versions-", dir=scratch) as written:
        driving = _given(config, server_key) if config.urls else _started(model, shape, config)
        async with driving as (backend, watch):
            longest = await backend.check(shape)
            if config.urls:
                await _begin_with(backend, model)
            folders = VersionFolders(Path(written), shape, config.dtype)
            front = Front(backend, folders, shape, longest, config.on_update)
            app = app_of([*token_routes(front), *control_routes(front, subscriber)], api_key)
            listening.listen(2048)
            ready(url_of(listening))
            serving = uvicorn.Server(server_config(app)).serve(sockets=[listening])
            await _first(serving, watch(), _raised(front.failed))


@asynccontextmanager
async def _started(model: Path, shape: Shape, config: ResolvedEngineConfig) -> AsyncIterator[Driven]:
    """A server that we start on the loopback address, and that ends with us."""
    kind, port = backend_of(config.kind), _free_port()
    launch = Launch(
        python=python_of(config),
        model=model.absolute(),
        shape=shape,
        port=port,
        device=config.device,
        dtype=config.dtype,
        tensor_parallel=config.tensor_parallel,
        max_running=config.max_running,
        cache_tokens=config.cache_tokens,
        memory_share=config.memory_share,
    )
    async with Program(kind.NAME, kind.command(launch)) as program, kind(f"http://{LOOPBACK}:{port}") as backend:
        await _first(_until_answers(backend), program.watch())
        yield backend, program.watch


@asynccontextmanager
async def _given(config: ResolvedEngineConfig, key: str | None) -> AsyncIterator[Driven]:
    """A server that runs already, by URL."""
    kind, url = backend_of(config.kind), config.urls[0]
    async with kind(url, key) as backend:
        if not await backend.answers():
            raise ConfigError(f"engine.urls: no {kind.NAME} server answers at {url}: start it, or correct the URL")

        async def watch() -> Never:
            failed = 0
            while failed < _LOOKS:
                await asyncio.sleep(_LOOK_S)
                failed = 0 if await backend.answers() else failed + 1
            raise EngineLost(f"the {kind.NAME} server at {url} does not answer any more")

        yield backend, watch


async def _until_answers(backend: Backend) -> None:
    """However long that takes: a large model takes minutes."""
    start_s = said_s = time.monotonic()
    print(f"{backend.NAME} starts", flush=True)
    while not await backend.answers():
        await asyncio.sleep(_POLL_S)
        if time.monotonic() - said_s > _SAY_S:
            said_s = time.monotonic()
            print(f"{backend.NAME} still starts, {said_s - start_s:.0f} s by now", flush=True)
    print(f"{backend.NAME} answers after {time.monotonic() - start_s:.0f} s", flush=True)


async def _begin_with(backend: Backend, model: Path) -> None:
    """Version 0 is the run's model, whatever the server was started with."""
    try:
        await backend.pause("recompute")
        await backend.load(model.absolute(), 0)
        await backend.resume()
    except EngineError as error:
        raise ConfigError(
            f"engine.urls: the {backend.NAME} server cannot load {model.absolute()}: its machine must see that folder "
            f"under this path ({error})"
        ) from None


async def _raised(failed: asyncio.Future[None]) -> None:
    await asyncio.shield(failed)


async def _first(*coroutines: Coroutine[Any, Any, object]) -> None:
    """Until one of them ends; what it raises is raised, and the others are cancelled."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _free_port() -> int:
    with listen(Where(LOOPBACK)) as free:
        port: int = free.getsockname()[1]
        return port
