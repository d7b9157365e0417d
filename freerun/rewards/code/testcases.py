"""What a task gives a program to be tested by, in the shapes that public data has it.

| in `extra` | from | style |
|---|---|---|
| `test`, `entry_point` | HumanEval | `check(candidate)`, or functions `test_…`, or bare asserts |
| `test_list`, `test_setup_code`, `test_imports` | MBPP | asserts |
| `tests`: [{"input": "1 2", "output": "3"}] | | standard input and output |
| `tests`: [{"args": [1, 2], "expected": 3}], `entry_point` | | calls |
| `input_output`: {"inputs": […], "outputs": […], "fn_name"?} | APPS, TACO | standard input and output, or calls |

`tests` and `test_list` may also be the task's answer, and all of them text that holds JSON.
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
class Scripts:
    """Input, and the output it must give."""

    cases: list[tuple[str, str]]


@dataclass(frozen=True)
class Calls:
    """Arguments, and the values that the function may return."""

    entry: str
    cases: list[tuple[list[Any], list[Any]]]


@dataclass(frozen=True)
class Asserts:
    """Pieces of Python that fail by raising."""

    entry: str | None
    cases: list[str]
    setup: str = ""

    @property
    def defines(self) -> str | None:
        """The first name that they call and nobody else defines: the function that was asked for. If there is none, but
        they all call what Python has too, the innermost such: a function may be called `sum`."""
        try:
            trees = [ast.parse(text) for text in (self.setup, *self.cases)]
        except (SyntaxError, ValueError):
            return None
        every = [node for tree in trees for node in ast.walk(tree)]
        known = {node.id for node in every if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        known |= {node.name for node in every if isinstance(node, _DEFINITIONS)}
        known |= {argument.arg for argument in every if isinstance(argument, ast.arg)}
        imports = [node for node in every if isinstance(node, ast.Import | ast.ImportFrom)]
        known |= {a.asname or a.name for n in imports for a in n.names if getattr(n, "module", "") != "solution"}
        own = [name for name in _called(every) if name not in known]
        if found := next((name for name in own if not hasattr(builtins, name)), None):
            return found
        everywhere = set(own).intersection(*(_called(list(ast.walk(tree))) for tree in trees[1:]))
        first = [name for name in (_called(list(ast.walk(trees[1]))) if self.cases else []) if name in everywhere]
        return first[-1] if first else None

    def assert_something(self, header: str) -> bool:
        """Without which every answer would pass. `header` is what the prompt gives."""
        return _asserts_something("\n".join((header, self.setup, *self.cases)))


_asserts_something = lru_cache(maxsize=256)(asserts_something)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _called(nodes: list[ast.AST]) -> list[str]:
    """Names of functions, the outermost first."""
    return [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]


Tests = Scripts | Calls | Asserts


def check_tests(task: Task, tests: Tests, header: str) -> None:
    """Refuse tests that cannot be run, and those that would let every answer pass."""
    try:
        vacuous = not any(wanted.strip() for _, wanted in tests.cases) if isinstance(tests, Scripts) else False
        vacuous = vacuous or (isinstance(tests, Asserts) and not tests.assert_something(header))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise RewardError(f"task {task.id}: its tests are not valid Python: {error}") from None
    if vacuous:
        raise RewardError(f"task {task.id}: its tests assert nothing, so every answer would pass: mend or remove it")


def find_tests(task: Task) -> Tests:
    extra = task.extra
    entry = extra.get("entry_point") or extra.get("fn_name")
    try:
        if isinstance(extra.get("test"), str):
            return Asserts(entry, [extra["test"]])
        if (pieces := _json(extra.get("test_list"))) is not None:
            imports = [str(line) for line in extra.get("test_imports") or []]
            return Asserts(entry, _texts(pieces), "\n".join([*imports, extra.get("test_setup_code") or ""]))
        if (pairs := _json(extra.get("input_output"))) is not None:
            return _pairs(pairs)
        tests = extra["tests"] if extra.get("tests") is not None else task.answer
        if tests is not None:
            return _listed(_json(tests), entry)
    except (KeyError, TypeError, ValueError) as error:
        raise RewardError(f"task {task.id}: its tests cannot be read: {type(error).__name__}: {error}") from None
    raise RewardError(
        f"task {task.id} has no tests: give it test and entry_point, test_list, tests or input_output "
        "(freerun/rewards/testcases.py has their shapes)"
    )


def _listed(tests: Any, entry: str | None) -> Tests:
    if isinstance(tests, str):
        return Asserts(entry, [tests])
    if not tests:
        raise ValueError("there are none")
    if isinstance(tests[0], str):
        return Asserts(entry, _texts(tests))
    if "args" not in tests[0]:
        return Scripts([(_text(case["input"]), _text(case["output"])) for case in tests])
    if entry is None:
        raise KeyError("entry_point")
    return Calls(entry, [(list(case["args"]), [case["expected"]]) for case in tests])


def _pairs(pairs: Any) -> Tests:
    cases = list(zip(pairs["inputs"], pairs["outputs"], strict=True))
    if not cases:
        raise ValueError("there are none")
    if not pairs.get("fn_name"):
        return Scripts([(_text(given), _text(wanted)) for given, wanted in cases])
    # An output may be wrapped in a list of its own; like the data's own checker, take either.
    unwrapped = [(list(given), [wanted, *(wanted[:1] if isinstance(wanted, list) else [])]) for given, wanted in cases]
    return Calls(pairs["fn_name"], unwrapped)


def _json(value: Any) -> Any:
    """What a text of JSON holds; any other value, and any other text, as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _texts(pieces: Any) -> list[str]:
    if not pieces or not all(isinstance(piece, str) for piece in pieces):
        raise TypeError("a list of texts is wanted")
    return list(pieces)


def _text(value: Any) -> str:
    """Lines are often given as a list."""
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)
