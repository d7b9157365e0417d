"""What counts as a reward: a finite number that fits 32 bits, which is what training computes with."""

import math
from numbers import Real
from typing import Any

LARGEST = 3.4e38


def reward_of(value: Any) -> float:
    """Takes a number of any kind, numpy's and 0-dimensional arrays included. ValueError says what else it was."""
    number = value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value
    if not isinstance(number, Real):
        raise ValueError(f"{shown(value)}, which is no number")
    try:
        reward = float(number)
    except OverflowError:
        reward = math.inf
    if not math.isfinite(reward) or abs(reward) > LARGEST:
        raise ValueError(f"{shown(value)}, which is no finite number of 32 bits")
    return reward


def shown(value: Any) -> str:
    """In one short line, whatever its repr does."""
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    text = " ".join(text.split())
    return text if len(text) <= 80 else f"{text[:77]}..."
