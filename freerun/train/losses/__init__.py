"""The objectives, one file each: its formula, its paper, and `OBJECTIVE`, which holds the loss and what it implies.

A file in this folder is an objective that `train.objective` knows by the file's name; nothing else lists them. A user's
own is `FILE.py:NAME`, `package.module:NAME` or an entry point, where NAME is an `Objective`, or a loss that implies
nothing.
"""

import pkgutil

from freerun.core import ConfigError
from freerun.core.resolve import Kind
from freerun.train.objective import Objective

OBJECTIVES = Kind(
    "objective",
    "OBJECTIVE",
    "freerun.objectives",
    {module.name: f"{__name__}.{module.name}:OBJECTIVE" for module in pkgutil.iter_modules(__path__)},
)


def names() -> list[str]:
    """Every objective that comes with Freerun."""
    return sorted(OBJECTIVES.built_in)


def find_objective(setting: str) -> Objective:
    """The objective that `train.objective` names, or a ConfigError of one line."""
    where = OBJECTIVES.find(setting)
    if not where.is_built_in:
        where.definition()  # what is wrong with the file is told better than by importing it
    found = where.load()
    if isinstance(found, Objective):
        return found
    if callable(found) and not isinstance(found, type):
        return Objective(found)
    raise ConfigError(
        f"train.objective={setting} is neither an Objective nor a function of (tokens, clip): see docs/objectives.md"
    )
