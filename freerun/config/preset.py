"""Published sets of settings, by name: the files in `presets/`.

A preset is a run's file with two more keys. `notes` says, one sentence each, what of the published run its settings do
not say; `gpu_gib` is the memory of the GPUs that it ran on. And its `preset` is another one that it begins with.
"""

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from freerun.config.text import parse
from freerun.core import ConfigError
from freerun.core.text import did_you_mean

_FOLDER = files("freerun.config") / "presets"
SMALL = "-small"
"""How the names of those end that a laptop can run."""
_NO_SETTINGS = ("preset", "notes", "gpu_gib")
Layer = tuple[dict[str, Any], str]
"""Settings, and a name for where they come from."""


@cache
def preset_names() -> list[str]:
    return sorted(file.name.removesuffix(".yaml") for file in _FOLDER.iterdir() if file.name.endswith(".yaml"))


def preset_layers(name: str) -> list[Layer]:
    """What it begins with first."""
    return [
        ({key: value for key, value in content.items() if key not in _NO_SETTINGS}, f"preset {each}")
        for each, content in reversed(list(_chain(name)))
    ]


def preset_notes(name: str) -> list[str]:
    """Those of the preset, or else of the one that it begins with."""
    return next((content["notes"] for _, content in _chain(name) if "notes" in content), [])


def preset_gpu_gib(name: str) -> float | None:
    """The memory of the GPUs that it ran on; None for one that needs none."""
    return next((content["gpu_gib"] for _, content in _chain(name) if "gpu_gib" in content), None)


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


def refuse_unmade(preset: str | None, model: str) -> None:
    """Refuse a small preset's model that is not made yet."""
    if preset is not None and preset.endswith(SMALL) and not Path(model).is_dir():
        raise ConfigError(f"model.path: there is no folder {model}: `freerun demo --preset {preset}` makes it")
