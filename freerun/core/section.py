"""The base of every configuration section. Each room owns its own, in its `config.py`.

A section is frozen, refuses unknown keys, and every field carries one line of help, which `freerun config` prints.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def knob(default: Any, help: str, **constraints: Any) -> Any:
    """A field with its line of help: `lr: float = knob(1e-5, "Learning rate.", gt=0)`."""
    return Field(default, description=help, **constraints)
