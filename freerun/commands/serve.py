"""`freerun serve`: a model behind HTTP, for people and their programs, in this process."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Coroutine, Sequence
from typing import Any

from freerun.config.load import load_section
from freerun.core import ConfigError
from freerun.engines.config import EngineConfig
from freerun.machine.machines import names_this_machine
from freerun.models.hub import find_model
from freerun.models.shape import read_shape
from freerun.models.weight_files import check_weights
from freerun.weights.subscribe import AnySubscriber, plain


def serve_teacher(model: str, overrides: Sequence[str], host: str, port: int, api_key: str | None) -> None:
    """`--score`: the same for a model that scores tokens, and generates none."""
    if overrides:
        raise ConfigError(f"{overrides[0]}: a model that only scores has no engine to set: leave that out")
    found = find_model(model)
    folder, name = found.folder, found.name if found.is_of_hub else found.folder.resolve().name
    check_weights(folder, read_shape(folder))
    from freerun.engines.listening import Where
    from freerun.engines.scoring.server import serve_scores

    def ready(url: str) -> None:
        _warn(host, api_key)
        print(f"freerun: scoring by {name} at {url}/v1 (Ctrl-C ends it)", flush=True)

    _until_told(serve_scores(folder, ready, Where(host, port), name, api_key))


def serve_model(model: str, overrides: Sequence[str], host: str, port: int, api_key: str | None) -> None:
    """Ends the process on Ctrl-C. What is wrong with the folder or the command line is a ConfigError."""
    config = load_section("engine", EngineConfig, overrides=overrides)
    found = find_model(model)
    folder, name = found.folder, found.name if found.is_of_hub else found.folder.resolve().name
    check_weights(folder, read_shape(folder))  # before torch is imported, which is slow
    from freerun.engines.embedded.server import serve
    from freerun.engines.listening import Where

    def ready(url: str) -> None:
        _warn(host, api_key)
        print(f"freerun: serving {name} at {url}/v1 (Ctrl-C ends it)", flush=True)

    _until_told(serve(folder, config, AnySubscriber(plain()), ready, where=Where(host, port), api_key=api_key))


def _warn(host: str, api_key: str | None) -> None:
    if api_key is None and not names_this_machine(host):
        print(f"freerun: whoever reaches {host} can use this model; consider --api-key", file=sys.stderr)


def _until_told(serving: Coroutine[Any, Any, None]) -> None:
    async def until_told() -> None:
        with contextlib.suppress(asyncio.CancelledError):  # that is how asyncio says Ctrl-C
            await serving
        print("freerun: ended", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(0)  # threads may be in the middle of a step, or of reading a text, for seconds

    asyncio.run(until_told())
