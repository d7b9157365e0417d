"""Finds a task's tests, in the formats of public datasets.

| in `extra` | used by | kind of tests |
|---|---|---|
| `test`, `entry_point` | HumanEval | `check(candidate)`, or functions `test_…`, or bare asserts |
| `test_list`, `test_setup_code`, `test_imports` | MBPP | asserts |
| `tests`: [{"input": "1 2", "output": "3"}] | | standard input and output |
| `tests`: [{"args": [1, 2], "expected": 3}], `entry_point` | | calls |
| `input_output`: {"inputs": […], "outputs": […], "fn_name"?} | APPS, TACO | standard input and output, or calls |

`tests` may also be the task's answer, and any of them may be a string of JSON.
"""

import ast
import builtins
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from freerun.core import RewardError, Task
from freerun.sandbox.inside.assertions import asserts_something


@dataclass(frozen=True)
class InputOutputTests:
    cases: list[tuple[str, str]]
    """Standard input, and the expected output."""


@dataclass(frozen=True)
class CallTests:
    entry: str
    cases: list[tuple[list[Any], list[Any]]]
    """The function's arguments, and the return values that are accepted."""


@dataclass(frozen=True)
class AssertTests:
    """Python snippets that fail by raising."""

    entry: str | None
    cases: list[str]
    setup: str = ""

    @property
    def defines(self) -> str | None:
        """The function under test: the first name that the tests call and do not define. If they call only builtins,
        the innermost builtin that all of them call, because a task may ask for a function named `sum`."""
        try:
            trees = [ast.parse(text) for text in (self.setup, *self.cases)]
        except (SyntaxError, ValueError):
            return None
        nodes = [node for tree in trees for node in ast.walk(tree)]
        defined = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        defined |= {node.name for node in nodes if isinstance(node, _DEFINITIONS)}
        defined |= {argument.arg for argument in nodes if isinstance(argument, ast.arg)}
        imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        defined |= {a.asname or a.name for n in imports for a in n.names if getattr(n, "module", "") != "solution"}
        undefined = [name for name in _called(nodes) if name not in defined]
        if found := next((name for name in undefined if not hasattr(builtins, name)), None):
            return found
        in_all = set(undefined).intersection(*(_called(list(ast.walk(tree))) for tree in trees[1:]))
        in_first = [name for name in (_called(list(ast.walk(trees[1]))) if self.cases else []) if name in in_all]
        return in_first[-1] if in_first else None

    def assert_something(self, prompt: str) -> bool:
        """Whether any answer can fail. `prompt` is the prompt's program, which may define helpers."""
        return _asserts_something("\n".join((prompt, self.setup, *self.cases)))


_asserts_something = lru_cache(maxsize=256)(asserts_something)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _called(nodes: list[ast.AST]) -> list[str]:
    """The names of the functions that are called, the outermost first."""
    return [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]


Tests = InputOutputTests | CallTests | AssertTests


def check_tests(task: Task, tests: Tests, prompt: str) -> None:
    """Refuse tests that cannot be run, and those that would let every answer pass."""
    try:
        match tests:
            case InputOutputTests():
                vacuous = not any(expected.strip() for _, expected in tests.cases)
            case AssertTests():
                vacuous = not tests.assert_something(prompt)
            case CallTests():
                vacuous = False
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise RewardError(f"task {task.id}: its tests are not valid Python: {error}") from None
    if vacuous:
        raise RewardError(f"task {task.id}: its tests assert nothing, so every answer would pass: fix or remove it")


def find_tests(task: Task) -> Tests:
    """RewardError for a task without tests, or with tests that cannot be read."""
    extra = task.extra
    entry = extra.get("entry_point") or extra.get("fn_name")
    try:
        if isinstance(extra.get("test"), str):
            return AssertTests(entry, [extra["test"]])
        if (snippets := _parse_json(extra.get("test_list"))) is not None:
            imports = [str(line) for line in extra.get("test_imports") or []]
            setup = "\n".join([*imports, extra.get("test_setup_code") or ""])
            return AssertTests(entry, _list_of_strings(snippets), setup)
        if (inputs_and_outputs := _parse_json(extra.get("input_output"))) is not None:
            return _from_inputs_and_outputs(inputs_and_outputs)
        tests = extra["tests"] if extra.get("tests") is not None else task.answer
        if tests is not None:
            return _from_tests(_parse_json(tests), entry)
    except (KeyError, TypeError, ValueError) as error:
        raise RewardError(f"task {task.id}: its tests cannot be read: {type(error).__name__}: {error}") from None
    raise RewardError(
        f"task {task.id} has no tests: give it test and entry_point, test_list, tests or input_output "
        "(docs/rewards.md has their formats)"
    )


def _from_tests(tests: Any, entry: str | None) -> Tests:
    if isinstance(tests, str):
        return AssertTests(entry, [tests])
    if not tests:
        raise ValueError("there are none")
    if isinstance(tests[0], str):
        return AssertTests(entry, _list_of_strings(tests))
    if "args" not in tests[0]:
        return InputOutputTests([(_joined(case["input"]), _joined(case["output"])) for case in tests])
    if entry is None:
        raise KeyError("entry_point")
    return CallTests(entry, [(list(case["args"]), [case["expected"]]) for case in tests])


def _from_inputs_and_outputs(data: Any) -> Tests:
    cases = list(zip(data["inputs"], data["outputs"], strict=True))
    if not cases:
        raise ValueError("there are none")
    if not data.get("fn_name"):
        return InputOutputTests([(_joined(given), _joined(expected)) for given, expected in cases])
    # An output may be wrapped in a list of its own; like the dataset's own checker, accept either.
    calls = [(list(given), [value, *(value[:1] if isinstance(value, list) else [])]) for given, value in cases]
    return CallTests(data["fn_name"], calls)


def _parse_json(value: Any) -> Any:
    """The value of a string of JSON; any other value as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _list_of_strings(values: Any) -> list[str]:
    if not values or not all(isinstance(value, str) for value in values):
        raise TypeError("expected a list of strings")
    return list(values)


def _joined(value: Any) -> str:
    """A text, which may be given as a list of lines."""
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)
