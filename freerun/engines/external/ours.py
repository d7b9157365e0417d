"""An engine of ours that was given by URL, such as `freerun serve`: the controller drives it without a front."""

import msgspec

from freerun.core import ConfigError, Version
from freerun.engines.external.base import check_shape
from freerun.engines.external.client import ServerClient
from freerun.models.shape import Shape


class _Health(msgspec.Struct):
    version: Version


async def check_ours(url: str, key: str | None, shape: Shape) -> None:
    """That an engine of ours answers there, that it takes our key, holds a model of this shape, and has its first
    weights yet: versions only go up. A ConfigError otherwise, which names the fix."""
    async with ServerClient("the engine", url, key) as http:
        if not await http.answers("/health"):
            raise ConfigError(
                f"engine.urls: nothing answers at {url}: start it, by `freerun serve`, or correct the URL"
            )
        status = await http.status("/model")
        if status == 401:
            raise ConfigError(f"engine.urls: the engine at {url} wants its API key: set FREERUN_ENGINE_KEY to that")
        if status != 200:
            raise ConfigError(
                f"engine.urls: what answers at {url} is not an engine of Freerun: correct the URL, or say by "
                "engine.kind whose it is"
            )
        check_shape(f"the engine at {url}", msgspec.json.decode(await http.get("/model")), shape)
        if version := msgspec.json.decode(await http.get("/health"), type=_Health).version:
            raise ConfigError(
                f"engine.urls: the engine at {url} has version {version} of another run's weights: start it again"
            )
