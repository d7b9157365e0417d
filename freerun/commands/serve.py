"""`freerun serve`: a model behind HTTP, for people and their programs, in this process."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from freerun.config.load import load_section
from freerun.core import ConfigError
from freerun.engines.config import EngineConfig
from freerun.machine.machines import names_this_machine
from freerun.models.config import ModelConfig
from freerun.models.hub import find_model
from freerun.models.shape import Backend, read_shape
from freerun.models.weight_files import check_weights, unused_weights
from freerun.weights.subscribe import AnySubscriber, plain


def serve_teacher(
    model: str, overrides: Sequence[str], host: str, port: int, api_key: str | None, trusted: bool = False
) -> None:
    """`--score`: the same for a model that scores tokens, and generates none."""
    if overrides:
        raise ConfigError(f"{overrides[0]}: a model that only scores has no engine to set: leave that out")
    folder, name, code = _checked(model, trusted)
    from freerun.engines.listening import Where
    from freerun.engines.scoring.server import serve_scores

    def ready(url: str) -> None:
        _warn(host, api_key)
        print(f"freerun: scoring by {name} at {url}/v1 (Ctrl-C ends it)", flush=True)

    _until_told(serve_scores(folder, ready, Where(host, port), name, api_key, code))


def serve_model(
    model: str, overrides: Sequence[str], host: str, port: int, api_key: str | None, trusted: bool = False
) -> None:
    """`trusted`: the code that the model's folder brings. Ends the process on Ctrl-C. What is wrong with the folder or
    the command line is a ConfigError."""
    config = load_section("engine", EngineConfig, overrides=overrides)
    folder, name, code = _checked(model, trusted)
    from freerun.engines.embedded.server import serve
    from freerun.engines.listening import Where

    def ready(url: str) -> None:
        _warn(host, api_key)
        print(f"freerun: serving {name} at {url}/v1 (Ctrl-C ends it)", flush=True)

    subscriber = AnySubscriber(plain())
    _until_told(serve(folder, config, subscriber, ready, where=Where(host, port), api_key=api_key, backend=code))


def _checked(model: str, trusted: bool) -> tuple[Path, str, Backend]:
    """Its folder, its name, and whose code computes it. Before torch is imported, which is slow."""
    found, code = find_model(model), ModelConfig(path=model, trust_remote_code=trusted).code
    shape = read_shape(found.folder, code)
    if note := unused_weights(check_weights(found.folder, shape), shape, found.folder):
        print(f"freerun: note: {note}", file=sys.stderr)
    return found.folder, found.name if found.is_of_hub else found.folder.resolve().name, code


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
