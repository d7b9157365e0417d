"""A user's class or function, and the options written beside its name: fields of a dataclass, or keyword arguments."""

import inspect
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import msgspec

from freerun.core.errors import ConfigError
from freerun.core.text import did_you_mean


def with_options(target: Any, options: Mapping[str, Any], called: str) -> Any:
    """An instance of a class, or a function that has them. `called` is what messages call it: `the judge math`."""
    if not isinstance(target, type):
        return partial(target, **_known(target, options, called)) if options else target
    if not is_dataclass(target):
        return target(**_known(target, options, called))
    known = [one.name for one in fields(target) if one.init]
    for option in options:
        if option not in known:
            raise ConfigError(f'{called} has no option "{option}"{_hint(option, known)}')
    try:
        return msgspec.convert(dict(options), target, strict=False)  # numbers in quotes included
    except msgspec.ValidationError as error:
        what, _, where = str(error).replace("`", "").partition(" - at $.")
        raise ConfigError(f"{called}: {where + ': ' if where else ''}{what}") from None


def _known(target: Any, options: Mapping[str, Any], called: str) -> dict[str, Any]:
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):  # of a built-in: it complains when it is called
        return dict(options)
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    names = [parameter.name for parameter in parameters]
    for option in options:
        if option not in names and not takes_all:
            raise ConfigError(f'{called} has no option "{option}"{_hint(option, names)}')
    return dict(options)


def _hint(option: str, known: list[str]) -> str:
    return did_you_mean(option, known) or f"; it has {', '.join(known) or 'none'}"
