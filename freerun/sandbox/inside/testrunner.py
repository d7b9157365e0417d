"""The process that runs the tests. The program is another process, which the tests call over a socket.

Consumes the tests with the values they expect, and produces a line of JSON for each test, in a file that only it and
the judge outside have open: {"test": 0, "ok": true, "detail": ""}, and at the end {"done": true}. Without that last
line nothing counts. Waits for the program; unblocked by its answers and by its end.
"""

import ast
import math
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from types import CodeType
from typing import Any, NoReturn

from freerun.sandbox.inside import pytest_subset
from freerun.sandbox.inside.collect import CollectedTests
from freerun.sandbox.inside.fixtures import built_in_fixtures
from freerun.sandbox.inside.link import BROKEN
from freerun.sandbox.inside.program_link import ProgramLink
from freerun.sandbox.inside.rewrite import FILE, dotted_names, instrument, required_modules
from freerun.sandbox.inside.test_globals import SolutionModule, TestGlobals

PROGRAM_ENDED = 3
"""The test runner's exit code that makes init wait for the program's own."""
TOLERANCE = 1e-6
RELATIVE_TOLERANCE = 1e-9
MAX_DETAIL_CHARS = 500
MAX_DETAILS = 1000
"""Only so many tests get a detail; there may be any number of tests."""

Report = Callable[[dict[str, Any]], None]


def run_tests(spec: dict[str, Any], channel: socket.socket, report: Report) -> NoReturn:
    """`spec` has the fields of `FunctionTests`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the program runs as our user and may send some

    def on_break(why: str) -> NoReturn:
        report({"broken": why})
        os._exit(PROGRAM_ENDED)

    trees = _parse(spec, report)
    program = ProgramLink(channel, on_break)
    match program.receive():
        case ["loaded", list(missing)]:
            program.missing = {str(name) for name in missing}
        case ["unreadable", str(why)]:
            report({"unreadable": why[:MAX_DETAIL_CHARS]})
            os._exit(0)
        case ["failed", str(why)]:
            report({"failed": why[:MAX_DETAIL_CHARS]})
            os._exit(0)
        case _:
            on_break(BROKEN)
    try:
        tests = list(_calls(spec, program) if spec["calls"] is not None else _snippets(spec, trees, program))
    except BaseException as error:  # the setup uses the program too, which made it fail
        report({"failed": _one_line(error)})
        os._exit(0)
    for index, test in enumerate(tests):
        _run_test(index, test, report)
    report({"done": True, "asserted": program.assertions})
    os._exit(0)


def _parse(spec: dict[str, Any], report: Report) -> list[ast.Module]:
    """Parse the setup and each of the tests. Tests that no program could pass are the task's fault; this is reported
    before the program is asked anything, so that no program can cause it."""
    sys.modules["pytest"] = pytest_subset.as_module()
    try:
        header, *trees = (ast.parse(source, FILE) for source in (spec["header"], spec["setup"], *spec["tests"]))
        modules = set().union(*map(required_modules, (header, *trees)))
        missing = [name for name in sorted(modules) if name.partition(".")[0] not in _PROVIDED and not _exists(name)]
        if missing:
            raise ImportError(f"its tests import {missing[0]}, which programs do not have")
        if "unittest" in modules:
            unittest: Any = import_module("unittest")
            unittest.main = lambda *args, **named: None  # test cases are collected and run anyway
        return trees
    except (ImportError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        report({"invalid_tests": _one_line(error)})
        os._exit(0)


_PROVIDED = {"solution", "pytest"}


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _run_test(index: int, test: Callable[[], None], report: Report) -> None:
    try:
        test()
    except BaseException as error:  # SystemExit too: a test passes only by reaching its end
        report({"test": index, "ok": False, "detail": _one_line(error) if index < MAX_DETAILS else ""})
    else:
        report({"test": index, "ok": True, "detail": ""})


def _calls(spec: dict[str, Any], program: ProgramLink) -> Iterator[Callable[[], None]]:
    """Tests that call the entry with arguments and compare what it returns."""
    function = program.ask("name", spec["entry"])

    def compare(arguments: list[Any], accepted: list[Any]) -> None:
        called = f"{spec['entry']}({', '.join(map(_short, arguments))})"
        program.assertions += 1
        result = function(*arguments)
        if not any(same(result, expected) for expected in accepted):
            raise AssertionError(f"{called} is {_short(result)}, not {_short(accepted[0])}")

    for arguments, accepted in spec["calls"]:
        yield lambda arguments=arguments, accepted=accepted: compare(arguments, accepted)  # type: ignore[misc]


def _snippets(spec: dict[str, Any], trees: list[ast.Module], program: ProgramLink) -> Iterator[Callable[[], None]]:
    """Tests that are Python snippets. They run one after another and share their global names."""
    program_names = {*spec["program_names"], *([spec["entry"]] if spec["entry"] else [])}
    names = TestGlobals(program, set().union(*map(dotted_names, trees)), program_names)
    program.test_names = names
    sys.modules["solution"] = SolutionModule("solution", program)
    _run_header(spec["header"], program_names, names, program)
    setup, *tests = map(instrument, trees)
    exec(setup, names)
    for code in tests:
        yield lambda code=code: _run_snippet(code, names, spec["entry"], program)  # type: ignore[misc]


def _run_header(header: str, program_names: set[str], names: TestGlobals, program: ProgramLink) -> None:
    """Define the prompt's helpers for the tests, except what the program must define. The prompt's classes are taken
    from the program, which has them too, so that both sides use the same class."""
    before = set(names)
    exec(compile(header, "prompt.py", "exec", dont_inherit=True), names)
    for name in set(names) - before:
        is_class = isinstance(names[name], type) and names[name].__module__ == names["__name__"]
        if name in program_names or (is_class and program.ask("has", name)):
            del names[name]


def _run_snippet(code: CodeType, names: TestGlobals, entry: str | None, program: ProgramLink) -> None:
    """Run a snippet, then the test functions and classes that it defined."""
    before = dict(names)
    exec(code, names)
    program.apply_pending_changes()
    new = {name: value for name, value in names.items() if name not in before or before[name] is not value}
    candidate = lambda: program.ask("candidate") if entry is None else program.ask("name", entry)  # noqa: E731
    CollectedTests(new, candidate, built_in_fixtures(program)).run(names)
    program.apply_pending_changes()


def same(value: Any, expected: Any) -> bool:
    """Whether two values are equal as JSON: tuples are lists, keys are strings, and floats need only be close."""
    if type(value).__module__ == "numpy":
        value = value.tolist()
    if isinstance(expected, list | tuple) and isinstance(value, list | tuple):
        return len(value) == len(expected) and all(map(same, value, expected))
    if isinstance(expected, dict) and isinstance(value, dict):
        actual = {str(key): item for key, item in value.items()}
        wanted = {str(key): item for key, item in expected.items()}
        return actual.keys() == wanted.keys() and all(same(actual[key], wanted[key]) for key in wanted)
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if isinstance(value, int | float) and isinstance(expected, int | float) and float in (type(value), type(expected)):
        return is_close(value, expected)
    return type(value) is type(expected) and bool(value == expected)


def is_close(value: float, expected: float) -> bool:
    """Whether they differ by at most 1e-6, or by 1e-9 of the expected value if that is not a whole number."""
    relative = 0.0 if isinstance(expected, int) or expected.is_integer() else RELATIVE_TOLERANCE
    with suppress(OverflowError):
        return math.isclose(value, expected, rel_tol=relative, abs_tol=TOLERANCE)
    return False


def _one_line(error: BaseException) -> str:
    """The exception, and the line of the tests in which it was raised."""
    try:
        text = "".join(traceback.format_exception_only(error)).strip()
    except BaseException:  # the program's exception raised another when asked for its text
        text = type(error).__name__
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == FILE]
    where = f" (line {lines[-1]} of the tests)" if lines else ""
    return f"{text}{where}"[:MAX_DETAIL_CHARS]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"
