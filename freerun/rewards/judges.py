"""The judges by name, and how a part of the configuration becomes a function.

A judge takes a task and the sampled text and returns a number, or a `Judged`; a user's may ask for the whole sample
(`userfile.py`). A task it cannot judge at all (no reference answer) is an exception, never a 0: that is a mistake in
the data and not of the policy. One with options is a dataclass, whose fields they are; a user's function gets them as
keyword arguments.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from freerun.core import ConfigError, DataError, RewardError, Task
from freerun.core.resolve import Kind
from freerun.core.text import did_you_mean
from freerun.rewards.spec import OWN_KEYS, JudgeSetting, JudgeSpec, convert, parse_judge
from freerun.rewards.userfile import check_function, load_function

JudgeFunction = Callable[..., Any]
"""Takes a task and a text; a `SampleJudge` takes a sample too."""

BUILT_IN = {
    "exact": "freerun.rewards.plain:exact",
    "number": "freerun.rewards.plain:number",
    "constant": "freerun.rewards.plain:constant",
    "teacher": "freerun.rewards.plain:teacher",
    "math": "freerun.rewards.math:math",
    "code": "freerun.rewards.code.judge:Code",
    "reasoning-gym": "freerun.rewards.gym:reasoning_gym",
    "verifiers": "freerun.rewards.taskset:verifiers",
    "format": "freerun.rewards.format:Format",
    "length": "freerun.rewards.format:Length",
    "overlong": "freerun.rewards.format:Overlong",
    "reward_model": "freerun.rewards.reward_model:RewardModel",
    "model": "freerun.rewards.remote:Model",
    "http": "freerun.rewards.remote:Http",
}
"""Where each is. Imported when it is used."""
JUDGES = Kind("judge", "FUNCTION", "freerun.judges", BUILT_IN)
LIBRARIES = {"math": "math_verify", "reasoning-gym": "reasoning_gym", "verifiers": "verifiers.v1"}
REMOTE = frozenset({"model", "http"})
"""They wait for somebody else: each has workers and a deadline of its own, and trying again may help."""
MODELS = frozenset({"reward_model"})
"""They run in a process of their own, which judges many answers at a time."""
PURE = frozenset({"exact", "number", "constant", "math", "format", "length", "overlong", "reward_model"})
"""They say the same of the same task and text, whenever they are asked."""
COMPUTE = frozenset(BUILT_IN) - REMOTE - {"verifiers"}
"""They wait for nobody: more of them than there are processors judge no faster."""
MOST_NAMED = 10
"""How many tasks one error line names."""


def check(judge: JudgeSetting, timeout_s: float = math.inf) -> None:
    """Refuse a judge that cannot be, without running any of the user's: what the parent does, in its own process.

    `timeout_s` is the deadline of parts that have none of their own.
    """
    check_parts(parse_judge(judge), timeout_s)


def check_parts(parts: Sequence[JudgeSpec], timeout_s: float = math.inf) -> None:
    for part in parts:
        if part.name in BUILT_IN:
            library = LIBRARIES.get(part.name, "").partition(".")[0]
            if library and find_spec(library) is None:
                raise ConfigError(f"the judge {part.name} needs a library: pip install {library.replace('_', '-')}")
            function: Any = _built_in(part)
            if part.name in MODELS and part.workers:
                raise ConfigError(f"the judge {part.name} has one process, which judges many answers: remove workers")
            if part.name == "code":
                function.check(part.timeout_s or timeout_s)
        else:
            check_function(JUDGES.find(part.name), part.options)


def check_tasks(judge: JudgeSetting, tasks: Sequence[Task]) -> None:
    """Refuse tasks that no answer can be judged by, such as programming tasks whose tests assert nothing, by name."""
    checks = [getattr(_built_in(part), "check_task", None) for part in parse_judge(judge) if part.name in BUILT_IN]
    faults: dict[str, str] = {}
    for check_task in filter(None, checks):
        for task in tasks:
            try:
                check_task(task)
            except RewardError as error:
                faults.setdefault(task.id, str(error))
    if faults:
        first, *others = faults
        also = f" (as are {len(others)} more: {', '.join(others[:MOST_NAMED])})" if others else ""
        raise DataError(f"{faults[first]}{also}")


def resolve(part: JudgeSpec) -> JudgeFunction:
    """The function behind the part, with all it needs imported: its first judgement is as fast as the others."""
    if part.name not in BUILT_IN:
        return load_function(JUDGES.find(part.name), part.options)
    if part.name in LIBRARIES:
        import_module(LIBRARIES[part.name])
    if part.name == "math":
        from freerun.rewards.math import warm_up

        warm_up()
    return _built_in(part)


def _built_in(part: JudgeSpec) -> JudgeFunction:
    module, _, name = BUILT_IN[part.name].partition(":")
    found: Any = getattr(import_module(module), name)
    known = [option.name for option in fields(found)] if isinstance(found, type) else []
    for option in part.options:
        if option not in known:
            hint = did_you_mean(option, [*known, *OWN_KEYS]) or f"; it has {', '.join(known) or 'none'}"
            raise ConfigError(f'the judge {part.name} has no option "{option}"{hint}')
    function: JudgeFunction = convert(part.options, found, part.name) if isinstance(found, type) else found
    return function
