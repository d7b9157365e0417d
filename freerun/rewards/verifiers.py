"""The built-in judges, and how the name of a judge becomes a function.

A judge takes a task and the sampled text and returns a number. A task it cannot judge at all (no reference answer) is
an exception, never a 0: that is a mistake in the data and not of the policy.
"""

import json
import logging
from collections.abc import Callable
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from freerun.core import ConfigError, RewardError, Task
from freerun.rewards.numerals import last_number
from freerun.rewards.userfile import check_function, load_function

JudgeFunction = Callable[[Task, str], Any]


def exact(task: Task, text: str) -> float:
    """1 if the text is the reference answer, white space around them aside."""
    return float(text.strip() == _reference(task).strip())


def number(task: Task, text: str) -> float:
    """1 if the last number of the text equals the last number of the reference answer."""
    reference = last_number(_reference(task))
    if reference is None:
        raise RewardError(f"task {task.id}: there is no number in its reference answer {task.answer!r}")
    found = last_number(text)
    return float(found is not None and found.same_as(reference))


def math(task: Task, text: str) -> float:
    """1 if math-verify finds the final answer of the text equal to the reference: by value, not by spelling."""
    from math_verify import parse, verify

    gold = _parse_gold(_reference(task))
    if not gold:
        raise RewardError(f"task {task.id}: math-verify finds no answer in its reference {task.answer!r}")
    # No timeouts of its own: they are signals, which do not stop a loop in C. The service kills this process instead.
    return float(verify(gold, parse(text, parsing_timeout=None), timeout_seconds=None))


@lru_cache(maxsize=256)
def _parse_gold(answer: str) -> list[Any]:
    from math_verify import parse

    final = answer.rpartition("####")[2].strip()  # GSM8K's way of ending a worked solution
    boxed = final if "\\boxed" in final else f"\\boxed{{{final}}}"  # bare "2\\sqrt{3}" would be read as 2
    gold: list[Any] = parse(boxed, parsing_timeout=None)
    return gold


def reasoning_gym(task: Task, text: str) -> float:
    """The score of the dataset's own scorer, of what stands between the last <answer> tags or else of all the text."""
    from reasoning_gym.utils import extract_answer

    try:
        name, index = task.extra["reasoning_gym"], task.extra["reasoning_gym_index"]
        options = json.dumps(task.extra["reasoning_gym_options"], sort_keys=True)
    except KeyError as missing:
        raise RewardError(f"task {task.id} has no {missing}: this judge needs a source reasoning-gym:NAME") from None
    answer = extract_answer(text)
    entry = _gym_entry(name, options, index)
    try:
        score = _gym_dataset(name, options).score_answer(text.strip() if answer is None else answer, entry)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        # The entry is as it was made, so the answer is malformed: most scorers give 0, a few of 0.1.25 raise.
        return 0.0
    return float(score)


@lru_cache(maxsize=8)
def _gym_dataset(name: str, options: str) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(name, **json.loads(options))


@lru_cache(maxsize=256)
def _gym_entry(name: str, options: str, index: int) -> Any:
    """The entry made again, not read back: JSON keeps no tuples, and the scorers of arc_agi and others compare them."""
    return _gym_dataset(name, options)[index]


def _reference(task: Task) -> str:
    if task.answer is None:
        raise RewardError(f"task {task.id} has no reference answer: set answer_key, or use another judge")
    return task.answer


BUILT_IN: dict[str, JudgeFunction] = {"exact": exact, "number": number, "math": math, "reasoning-gym": reasoning_gym}
LIBRARIES = {"math": "math_verify", "reasoning-gym": "reasoning_gym"}


def check(judge: str) -> None:
    """Refuse a judge that cannot be, without running any of it: what the parent does, in its own process."""
    if judge not in BUILT_IN and ":" in judge:
        check_function(judge)
    elif judge not in BUILT_IN:
        near = get_close_matches(judge, BUILT_IN, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f'there is no judge "{judge}": use one of {", ".join(BUILT_IN)}, or FILE.py:FUNCTION{hint}')
    elif judge in LIBRARIES and find_spec(LIBRARIES[judge]) is None:
        raise ConfigError(f"the judge {judge} needs a library: pip install {LIBRARIES[judge].replace('_', '-')}")


def resolve(judge: str) -> JudgeFunction:
    """The function behind the name, with all it needs imported: its first judgement is as fast as the others."""
    check(judge)
    if judge not in BUILT_IN:
        return load_function(judge)
    if judge in LIBRARIES:
        import_module(LIBRARIES[judge])
    if judge == "math":
        logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its timeouts are off
    return BUILT_IN[judge]
