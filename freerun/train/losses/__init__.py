"""The objectives, one file each: its formula, its paper, and `OBJECTIVE`, which holds the loss and what it implies.

A file in this folder is an objective that `train.objective` knows by the file's name; nothing else lists them. A user's
own is `FILE.py:NAME` or `package.module:NAME`, where NAME is an `Objective`, or a loss that implies nothing.
"""

import importlib
import importlib.util
import pkgutil
import sys
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from freerun.core import ConfigError
from freerun.train.objective import Objective


def names() -> list[str]:
    """Every objective that comes with Freerun."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def find_objective(setting: str) -> Objective:
    """The objective that `train.objective` names, or a ConfigError of one line."""
    if ":" in setting:
        return _users(setting)
    if setting not in names():
        near = get_close_matches(setting, names(), n=1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(names())}, or FILE.py:NAME"
        raise ConfigError(f"there is no objective {setting}; {hint}")
    objective: Objective = importlib.import_module(f"{__name__}.{setting}").OBJECTIVE
    return objective


def _users(setting: str) -> Objective:
    found = _load(setting)
    if isinstance(found, Objective):
        return found
    if callable(found) and not isinstance(found, type):
        return Objective(found)
    raise ConfigError(
        f"train.objective={setting} is neither an Objective nor a function of (tokens, clip): see docs/objectives.md"
    )


def _load(setting: str) -> Any:
    """The object behind `FILE.py:NAME` or `package.module:NAME`."""
    place, _, name = setting.rpartition(":")
    module = _file(Path(place).expanduser().resolve()) if place.endswith(".py") else _module(place, setting)
    if name not in vars(module):
        near = get_close_matches(name, vars(module), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"train.objective={setting}: {place} has no {name}{hint}")
    return vars(module)[name]


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"train.objective: there is no file {path}")
    return _imported(path, path.stat().st_mtime_ns)


@lru_cache
def _imported(path: Path, changed_ns: int) -> ModuleType:
    """The file as a module, imported once for as long as it does not change."""
    name = f"freerun_objective_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look a module up by its name
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"train.objective: {path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _module(name: str, setting: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"train.objective={setting} cannot be imported: {error}") from None
