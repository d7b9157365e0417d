"""Shapes of published models, for plans of runs whose model is not here: `published/ORG/NAME.json`, the part of each
model's `config.json` that says how large it is.

A mixture of experts has a shape to plan by, and only that: neither engine nor trainer of ours computes one.
"""

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from freerun.models.hub import cached_model, config_on_hub
from freerun.models.shape import Shape, read_shape, shape_of

_FOLDER = files("freerun.models") / "published"


@dataclass(slots=True, frozen=True, kw_only=True)
class ExpertShape(Shape):
    """A mixture of experts. `ffn` is the width of those that work on one token together."""

    experts: int
    expert_ffn: int

    @property
    def mlp_parameters(self) -> int:
        """All experts, and the router that chooses among them."""
        return self.experts * (3 * self.hidden * self.expert_ffn + self.hidden)


def shape_to_plan_by(path: str) -> tuple[Shape, bool]:
    """The shape of the model in that folder, or in the cache of the hub; where there is none, the published one of that
    name, and True."""
    found = cached_model(path)
    if found is not None and found.folder.is_dir():
        return read_shape(found.folder), False
    if (raw := _published(path)) is not None:
        return _shape(raw), True
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


def _shape(raw: dict[str, Any]) -> Shape:
    if raw["model_type"] != "qwen3_moe":
        return shape_of(raw)
    together = raw["num_experts_per_tok"] * raw["moe_intermediate_size"]
    dense = shape_of(raw | {"model_type": "qwen3", "intermediate_size": together})
    values = {name: getattr(dense, name) for name in Shape.__dataclass_fields__}
    return ExpertShape(**values, experts=raw["num_experts"], expert_ffn=raw["moe_intermediate_size"])
