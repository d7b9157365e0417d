"""The base of every configuration section. Each room owns its own, in its `config.py`.

A section is frozen, refuses unknown keys, and every field carries one line of help, which `freerun config` prints.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, ser_json_inf_nan="strings")

    def plain(self) -> dict[str, Any]:
        """As any JSON can carry it, infinite numbers too, to be validated again at the other end."""
        values: dict[str, Any] = json.loads(self.model_dump_json())
        return values


def knob(default: Any, help: str, **constraints: Any) -> Any:
    """A field with its line of help: `lr: float = knob(1e-5, "Learning rate.", gt=0)`."""
    return Field(default, description=help, **constraints)


def by_dotted_key(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a nested mapping under its dotted key: `a.b` for {"a": {"b": …}}."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from by_dotted_key(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def with_key(values: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy of the nested mapping in which the dotted key has that value."""
    first, _, rest = key.partition(".")
    inner = values.get(first)
    return {**values, first: with_key(inner if isinstance(inner, Mapping) else {}, rest, value) if rest else value}
