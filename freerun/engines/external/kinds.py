"""Which backend speaks to which kind of engine, and where that is installed."""

import os
from collections.abc import Callable
from pathlib import Path

import freerun
from freerun.core import ConfigError
from freerun.engines.config import EngineConfig, EngineKind
from freerun.engines.external.base import Backend


def backend_of(kind: EngineKind) -> type[Backend]:
    return _KINDS[kind]()


def python_of(config: EngineConfig) -> Path:
    """The Python that the server runs in: the one that is set, or what `make engines` built, in this folder or beside
    the package."""
    if config.python:
        places = [Path(config.python)]
    else:
        beside = Path(freerun.__file__).parent.parent
        places = [root / "engines" / config.kind / "bin" / "python" for root in (Path.cwd(), beside)]
    for place in places:
        if os.access(place, os.X_OK) and place.is_file():
            return place.absolute()
    if config.python:
        raise ConfigError(f"engine.python: there is no Python at {config.python}: give that of {config.kind}'s folder")
    raise ConfigError(
        f"engine.kind is {config.kind}, which is not installed: build engines/{config.kind} by `make engines`, or name "
        "its Python by engine.python"
    )


def _vllm() -> type[Backend]:
    from freerun.engines.external.vllm import VllmBackend

    return VllmBackend


def _sglang() -> type[Backend]:
    from freerun.engines.external.sglang import SglangBackend

    return SglangBackend


_KINDS: dict[str, Callable[[], type[Backend]]] = {"vllm": _vllm, "sglang": _sglang}
