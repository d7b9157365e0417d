"""The base of every configuration section. Each room owns its own, in its `config.py`.

A section is frozen, refuses unknown keys, and every field carries one line of help, which `freerun config` prints.
"""

import json
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
