"""A row, and the words in which the readers of rows complain."""

from collections.abc import Iterable
from typing import Any

Row = dict[str, Any]


def listed(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names) or "nothing"
