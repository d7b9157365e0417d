"""`freerun serve`: a model folder behind HTTP, for people and their programs, in this process."""

import asyncio
import contextlib
import difflib
import ipaddress
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from freerun.core import ConfigError
from freerun.engines.config import EngineConfig
from freerun.models.shape import read_shape
from freerun.weights.subscribe import PLAIN, AnySubscriber


def serve_model(folder: Path, overrides: Sequence[str], host: str, port: int, api_key: str | None) -> None:
    """Ends the process on Ctrl-C. What is wrong with the folder or the command line is a ConfigError."""
    config = engine_config(overrides)
    read_shape(folder)  # before torch is imported, which is slow
    if api_key is None and not _is_loopback(host):
        print(f"freerun: whoever reaches {host} can use and change this model; consider --api-key", file=sys.stderr)
    from freerun.engines.embedded.server import Where, serve

    def ready(url: str) -> None:
        print(f"freerun: serving {folder.resolve().name} at {url}/v1 (Ctrl-C ends it)", flush=True)

    async def until_told() -> None:
        with contextlib.suppress(asyncio.CancelledError):  # that is how asyncio says Ctrl-C
            await serve(folder, config, AnySubscriber(PLAIN), ready, Where(host, port), api_key)
        print("freerun: ended", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(0)  # threads may be in the middle of a step, or of reading a text, for seconds

    asyncio.run(until_told())


def engine_config(overrides: Sequence[str]) -> EngineConfig:
    """The engine's section alone, from `engine.KEY=VALUE`."""
    values: dict[str, Any] = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        section, _, name = key.partition(".")
        if not equals or section != "engine" or not name:
            raise ConfigError(f"{override!r} is not engine.KEY=VALUE, such as engine.cache_tokens=100000")
        if name not in EngineConfig.model_fields:
            near = difflib.get_close_matches(name, EngineConfig.model_fields, n=1)
            known = f"did you mean engine.{near[0]}?" if near else f"engine has {', '.join(EngineConfig.model_fields)}"
            raise ConfigError(f"unknown key {key}; {known}")
        try:
            values[name] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ConfigError(f"{override!r}: the value is not YAML") from None
    try:
        return EngineConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"engine.{first['loc'][0]}: {first['msg']} (it is {first['input']!r})") from None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
