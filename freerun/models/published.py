"""Shapes of published models, for plans of runs whose model is not here: `published/ORG/NAME.json`, the part of each
model's `config.json` that says how large it is.
"""

import json
from importlib.resources import files
from typing import Any

from freerun.models.hub import cached_model, config_on_hub
from freerun.models.shape import Shape, read_shape, shape_of

_FOLDER = files("freerun.models") / "published"


def shape_to_plan_by(path: str) -> tuple[Shape, bool]:
    """The shape of the model in that folder, or in the cache of the hub; where there is none, the published one of that
    name, and True."""
    found = cached_model(path)
    if found is not None and found.folder.is_dir():
        return read_shape(found.folder), False
    if (raw := _published(path)) is not None:
        return shape_of(raw), True
    return read_shape(config_on_hub(path) if found is None else found.folder), found is None


def published_models() -> list[str]:
    """Their names, as ORG/NAME."""
    return sorted(
        f"{org.name}/{file.name.removesuffix('.json')}" for org in _FOLDER.iterdir() for file in org.iterdir()
    )


def _published(name: str) -> dict[str, Any] | None:
    if name not in published_models():
        return None
    raw: dict[str, Any] = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return raw
