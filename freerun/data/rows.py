"""A row of data, and how error messages list names."""

from collections.abc import Iterable
from typing import Any

Row = dict[str, Any]


def listed(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names) or "nothing"
