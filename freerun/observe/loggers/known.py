"""The loggers by name, and what must be installed for each. Imports none of their libraries."""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from freerun.core import ConfigError
from freerun.core.options import with_options
from freerun.core.resolve import Kind
from freerun.observe.loggers.base import Logger

_FILES = {
    "wandb": "wandb:Wandb",
    "tensorboard": "tensorboard:TensorBoard",
    "trackio": "trackio:Trackio",
    "mlflow": "mlflow:MLflow",
    "prometheus": "prometheus:Prometheus",
    "opentelemetry": "opentelemetry:OpenTelemetry",
}
OBSERVERS = Kind(
    "observer", "Class", "freerun.observers", {name: f"{__package__}.{where}" for name, where in _FILES.items()}
)


@dataclass(frozen=True)
class LoggerChoice:
    """A logger that the configuration names, and that can be started."""

    logger: str
    """A name, or FILE.py:Class."""
    called: str
    """In notes, and in the names of its files: no two of a run are called the same."""
    options: dict[str, Any]
    samples: int
    """How many of a step it wants."""


def choose(logger: str, kind: type[Logger], options: dict[str, Any], taken: Iterable[LoggerChoice]) -> LoggerChoice:
    """What is wrong with its options, or is not installed, is a ConfigError: its process would find out too late."""
    made: Logger = with_options(kind, options, f"the logger {logger}")
    if kind.library and not _is_installed(kind.library):
        package = f"freerun[{kind.extra}]" if kind.extra else kind.library
        raise ConfigError(f"the logger {logger} needs {kind.library}, which is not installed: pip install '{package}'")
    plain = logger if logger in OBSERVERS.built_in else kind.__name__
    before = sum(choice.called.rpartition("-")[0] == plain or choice.called == plain for choice in taken)
    return LoggerChoice(logger, f"{plain}-{before + 1}" if before else plain, options, made.samples)


def _is_installed(module: str) -> bool:
    """Without importing it. A folder of that name in the working directory, which some of these libraries leave behind,
    is no library."""
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:  # not even the package that it is in
        return False
    return spec is not None and spec.origin is not None
