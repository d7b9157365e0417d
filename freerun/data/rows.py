"""A row, and the words in which the readers of rows complain."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

Row = dict[str, Any]


def listed(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names) or "nothing"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean "question"?` where something is near, else nothing."""
    near = get_close_matches(name, list(known), n=1)
    return f'; did you mean "{near[0]}"?' if near else ""
