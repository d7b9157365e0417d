"""Observers that the configuration names, or that a script brings: the user's own, which run in this process, and
loggers, which do not."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from freerun.core import ConfigError
from freerun.core.observer import Observer
from freerun.core.options import with_options
from freerun.core.traces import describe
from freerun.observe.loggers.base import Logger
from freerun.observe.loggers.known import OBSERVERS, LoggerChoice, choose


@dataclass
class Guests:
    """Those that a configuration names."""

    observers: list[Observer] = field(default_factory=list)
    """In this process."""
    loggers: list[LoggerChoice] = field(default_factory=list)
    """Each in a process of its own, which is not started yet."""


def load_guests(settings: Iterable[str | dict[str, Any]]) -> Guests:
    """A mistake in one, or a library that a logger needs and that is not installed, is one line."""
    guests = Guests()
    for setting in settings:
        _load(setting, guests)
    return guests


def guest_of(observer: Any) -> Observer:
    """An observer, or a class of such."""
    called = f"the observer {getattr(observer, '__name__', type(observer).__name__)}"
    return _made(observer, {}, called) if isinstance(observer, type) else _checked(observer, called)


def _load(setting: str | dict[str, Any], guests: Guests) -> None:
    options = dict(setting) if isinstance(setting, dict) else {"name": setting}
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(
            f"observers: {setting!r:.80} is neither a logger's name nor FILE.py:Class, nor {{name: …, its options}}"
        )
    found = OBSERVERS.find(name)
    found.definition()
    target = found.load()
    if isinstance(target, type) and issubclass(target, Logger):
        guests.loggers.append(choose(name, target, options, guests.loggers))
    else:
        guests.observers.append(_made(target, options, f"the observer {name}"))


def _made(target: Any, options: dict[str, Any], called: str) -> Observer:
    try:
        return _checked(with_options(target, options, called) if isinstance(target, type) else target, called)
    except ConfigError:
        raise
    except Exception as error:  # the user's constructor
        raise ConfigError(f"{called} cannot be made: {describe(error)}") from error


def _checked(observer: Any, called: str) -> Observer:
    if not isinstance(observer, Observer):
        raise ConfigError(f"{called} is no observer: derive its class from freerun.Observer")
    return observer
