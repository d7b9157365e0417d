"""Published sets of settings, by name: the files in `presets/`.

A preset is a run's file with two more keys. `preset` names another one that it begins with; `notes` says, one sentence
each, what of the published run its settings do not say.
"""

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

from freerun.config.text import parse
from freerun.core import ConfigError
from freerun.core.text import did_you_mean

_FOLDER = files("freerun.config") / "presets"
Layer = tuple[dict[str, Any], str]
"""Settings, and a name for where they come from."""


@cache
def preset_names() -> list[str]:
    return sorted(file.name.removesuffix(".yaml") for file in _FOLDER.iterdir() if file.name.endswith(".yaml"))


def preset_layers(name: str) -> list[Layer]:
    """What it begins with first."""
    return [
        ({key: value for key, value in content.items() if key not in ("preset", "notes")}, f"preset {each}")
        for each, content in reversed(list(_chain(name)))
    ]


def preset_notes(name: str) -> list[str]:
    """Those of the preset, or else of the one that it begins with."""
    return next((content["notes"] for _, content in _chain(name) if "notes" in content), [])


def _chain(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The preset, what it begins with, and so on."""
    following: Any = name
    while following is not None:
        content = _content(following)
        yield following, content
        following = content.get("preset")


def _content(name: Any) -> dict[str, Any]:
    if name not in preset_names():
        near = did_you_mean(str(name), preset_names()) or f"; there are {', '.join(preset_names())}"
        raise ConfigError(f"there is no preset {name}{near}")
    content: dict[str, Any] = parse((_FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return content
