"""Observers that the user brings, by name or as objects."""

from collections.abc import Iterable
from typing import Any

from freerun.core import ConfigError
from freerun.core.observer import Observer
from freerun.core.options import with_options
from freerun.core.resolve import Kind
from freerun.core.traces import describe

OBSERVERS = Kind("observer", "Class", "freerun.observers")


def load_guests(settings: Iterable[str | dict[str, Any]]) -> list[Observer]:
    """Those that the configuration names, imported in this process. A mistake in one is one line."""
    return [_load(setting) for setting in settings]


def guest_of(observer: Any) -> Observer:
    """An observer, or a class of such."""
    called = f"the observer {getattr(observer, '__name__', type(observer).__name__)}"
    return _made(observer, {}, called) if isinstance(observer, type) else _checked(observer, called)


def _load(setting: str | dict[str, Any]) -> Observer:
    options = dict(setting) if isinstance(setting, dict) else {"name": setting}
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(
            f"observers: {setting!r:.80} is neither FILE.py:Class nor {{name: FILE.py:Class, its options}}"
        )
    found = OBSERVERS.find(name)
    found.definition()
    return _made(found.load(), options, f"the observer {name}")


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
