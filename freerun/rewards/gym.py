"""The judge `reasoning-gym`: each dataset's own scorer. The only file of this room that imports reasoning-gym."""

import json
from functools import lru_cache
from typing import Any

from freerun.core import RewardError, Task


def reasoning_gym(task: Task, text: str) -> float:
    """The score that the dataset gives to the text between the last <answer> tags, or else to the whole text."""
    from reasoning_gym.utils import extract_answer

    try:
        name, index = task.extra["reasoning_gym"], task.extra["reasoning_gym_index"]
        options = json.dumps(task.extra["reasoning_gym_options"], sort_keys=True)
    except KeyError as missing:
        raise RewardError(f"task {task.id} has no {missing}: this judge needs a source reasoning-gym:NAME") from None
    answer = extract_answer(text)
    entry = _entry(name, options, index)
    try:
        score = _dataset(name, options).score_answer(text.strip() if answer is None else answer, entry)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        # The entry is valid, so the answer must be malformed. Most scorers give 0; a few of 0.1.25 raise.
        return 0.0
    return float(score)


@lru_cache(maxsize=8)
def _dataset(name: str, options: str) -> Any:
    import reasoning_gym

    given = json.loads(options)
    if name == "composite":
        from reasoning_gym.composite import DatasetSpec

        given["datasets"] = [DatasetSpec(**{"weight": 1.0, "config": {}, **spec}) for spec in given["datasets"]]
    return reasoning_gym.create_dataset(name, **given)


@lru_cache(maxsize=256)
def _entry(name: str, options: str, index: int) -> Any:
    """Generate the entry again instead of reading it from the row: JSON has no tuples, which some scorers compare."""
    return _dataset(name, options)[index]
