"""Arrays of a sample as run.db holds them, back as lists: tokens, log-probabilities, ratios."""

import math

import numpy as np


def tokens_of(held: bytes) -> list[int]:
    tokens: list[int] = np.frombuffer(held, np.int32).tolist()
    return tokens


def floats(held: bytes) -> list[float | None]:
    """None for what is no number."""
    return [value if math.isfinite(value) else None for value in np.frombuffer(held, np.float32).tolist()]


def ratios(behavior: list[float | None], before: list[float | None]) -> list[float | None]:
    """How much likelier each token is by the trainer's weights before the step than it was when it was sampled. None
    where one of the two is not known."""
    return [
        None if sampled is None or trained is None else math.exp(min(trained - sampled, 700.0))
        for sampled, trained in zip(behavior, before, strict=False)
    ]
