"""A judge of the user's own: a function of `(task, text)`, or one that asks for the whole `sample`.

`check_function` reads its file and runs none of it, so that the controller can refuse a mistake at once without
importing whatever the user's file imports. `load_function` does import it, in a worker.
"""

import ast
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from freerun.core import ConfigError, Task
from freerun.core.options import with_options
from freerun.core.resolve import Found
from freerun.core.text import did_you_mean
from freerun.rewards.base import JudgedSample

SAMPLE = "sample"
"""The parameter by which a judge asks for more than the text."""
BY_NAME = frozenset({"task", "text", SAMPLE})


@dataclass(frozen=True)
class SampleJudge:
    """A judge that asks for the whole sample. It is called by name, with what it has parameters for."""

    function: Callable[..., Any]
    wants: frozenset[str]

    def __call__(self, task: Task, text: str, sample: JudgedSample) -> Any:
        given = {"task": task, "text": text, SAMPLE: sample}
        return self.function(**{name: given[name] for name in self.wants})


def load_function(found: Found, options: Mapping[str, Any]) -> Callable[..., Any]:
    """Import it, with its options: a class has them as fields, a function as arguments."""
    judge: Any = with_options(found.load(), options, f"the judge {found.given}")
    if not callable(judge):
        raise ConfigError(f"the judge {found.given} cannot be called: it must be a function, or a class with __call__")
    function: Callable[..., Any] = judge
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # of a built-in
        return function
    wants = {
        name for name in BY_NAME & set(parameters) if parameters[name].kind is not inspect.Parameter.POSITIONAL_ONLY
    }
    return SampleJudge(function, frozenset(wants)) if SAMPLE in wants else function


def check_function(found: Found, options: Iterable[str] = ()) -> None:
    """`options` are the names of what it will be given besides the task and the answer."""
    where, node = found.definition()
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.decorator_list:
        _check_shape(where, node, set(options))


def _check_shape(where: str, node: ast.FunctionDef | ast.AsyncFunctionDef, options: set[str]) -> None:
    args, name = node.args, node.name
    by_name = {argument.arg for argument in args.args + args.kwonlyargs}
    asks = SAMPLE in by_name
    named = by_name - BY_NAME if asks else {argument.arg for argument in args.args[2:] + args.kwonlyargs}
    for option in sorted(options - named):
        if args.kwarg is None:
            raise ConfigError(f'{where}:{node.lineno}: {name} has no argument "{option}"{did_you_mean(option, named)}')
    if not (_required(args, 0) <= options | BY_NAME if asks else _takes_two(args, options)):
        raise ConfigError(
            f"{where}:{node.lineno}: {name} must take two arguments: `def {name}(task, text) -> float`, or a `sample`; "
            "others need a default, or a value beside the judge's name"
        )


def _takes_two(args: ast.arguments, options: set[str]) -> bool:
    """Whether it can be called with a task, a text, and these options by name."""
    return _required(args, 2) <= options and (len(args.posonlyargs + args.args) >= 2 or args.vararg is not None)


def _required(args: ast.arguments, first: int) -> set[str]:
    """The names of what it cannot be called without, but for the first so many."""
    places = args.posonlyargs + args.args
    required = {argument.arg for argument in places[first : len(places) - len(args.defaults)]}
    return required | {
        argument.arg for argument, default in zip(args.kwonlyargs, args.kw_defaults, strict=True) if default is None
    }
