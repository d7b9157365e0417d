"""Wording that every room shares."""

from collections.abc import Callable, Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str], in_full: Callable[[str], str] = str, similarity: float = 0.6) -> str:
    """`; did you mean math?` where a known name is spelled much like this one, else nothing.

    `in_full` turns the name that was found into what the user would write, such as train.lr for lr.
    """
    near = get_close_matches(name, list(known), n=1, cutoff=similarity)
    return f"; did you mean {in_full(near[0])}?" if near else ""


def counted(count: int, what: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def of_bytes(count: float) -> str:
    """`1.5 GB`."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
