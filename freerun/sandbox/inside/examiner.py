"""The process that runs the tests. The program is in another, which it asks over a socket.

Consumes a job (the tests, and the values they expect) and produces a line of JSON for each test in a file that nobody
but it and the judge outside has open: {"test": 0, "ok": true, "detail": ""}, and at the end {"done": true}. Without
that last line nothing counts. Waits for the program; unblocked by its answers and by its end.
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

from freerun.sandbox.inside import pytest_subset as likepytest
from freerun.sandbox.inside.collect import Tests
from freerun.sandbox.inside.rewrite import FILE, dotted, imported, rewritten
from freerun.sandbox.inside.tested import Module, Names, Program

PROGRAM_ENDED = 3
"""Our exit code, so that init waits for the program's own."""
TOLERANCE = 1e-6
RELATIVE = 1e-9
LONGEST_DETAIL = 500
MOST_DETAILS = 1000
"""Tests of which each is explained; there may be any number of them."""

Say = Callable[[dict[str, Any]], None]


def examine(job: dict[str, Any], channel: socket.socket, say: Say) -> NoReturn:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the program shares our user, and may send some

    def on_break(why: str) -> NoReturn:
        say({"broken": why})
        os._exit(PROGRAM_ENDED)

    trees = _parsed(job, say)
    program = Program(channel, on_break)
    match program.hear():
        case ["loaded", list(missing)]:
            program.missing = {str(name) for name in missing}
        case ["unreadable", str(why)]:
            say({"unreadable": why[:LONGEST_DETAIL]})
            os._exit(0)
        case ["failed", str(why)]:
            say({"failed": why[:LONGEST_DETAIL]})
            os._exit(0)
        case _:
            on_break("the program broke the line to its tests")
    try:
        tests = list(_calls(job, program) if job["calls"] is not None else _asserts(job, trees, program))
    except BaseException as error:  # what comes before the first test needs the program too, which failed it
        say({"failed": _line(error)})
        os._exit(0)
    for index, test in enumerate(tests):
        _examine_one(index, test, say)
    say({"done": True, "asserted": program.assertions})
    os._exit(0)


def _parsed(job: dict[str, Any], say: Say) -> list[ast.Module]:
    """The setup, and each of the tests. Those that no program could pass are a fault of the task: told before the
    program has been asked anything, so that no answer can make it look so."""
    sys.modules["pytest"] = likepytest.as_module()
    try:
        header, *trees = (ast.parse(source, FILE) for source in (job["header"], job["setup"], *job["tests"]))
        needed = set().union(*map(imported, (header, *trees)))
        missing = [name for name in sorted(needed) if name.partition(".")[0] not in _OURS and not _is_there(name)]
        if missing:
            raise ImportError(f"its tests import {missing[0]}, which programs do not have")
        if "unittest" in needed:
            unittest: Any = import_module("unittest")
            unittest.main = lambda *args, **named: None  # whatever there is of it is run anyway
        return trees
    except (ImportError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        say({"unfit": _line(error)})
        os._exit(0)


_OURS = {"solution", "pytest"}


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _examine_one(index: int, test: Callable[[], None], say: Say) -> None:
    try:
        test()
    except BaseException as error:  # SystemExit too: only a test that comes to its end has been passed
        say({"test": index, "ok": False, "detail": _line(error) if index < MOST_DETAILS else ""})
    else:
        say({"test": index, "ok": True, "detail": ""})


def _calls(job: dict[str, Any], program: Program) -> Iterator[Callable[[], None]]:
    """Arguments in, a value out, compared here."""
    function = program.ask("name", job["entry"])

    def compare(arguments: list[Any], accepted: list[Any]) -> None:
        called = f"{job['entry']}({', '.join(map(_short, arguments))})"
        program.assertions += 1
        result = function(*arguments)
        if not any(same(result, expected) for expected in accepted):
            raise AssertionError(f"{called} is {_short(result)}, not {_short(accepted[0])}")

    for arguments, accepted in job["calls"]:
        yield lambda arguments=arguments, accepted=accepted: compare(arguments, accepted)  # type: ignore[misc]


def _asserts(job: dict[str, Any], trees: list[ast.Module], program: Program) -> Iterator[Callable[[], None]]:
    """Pieces of Python, run one after another with the same names; then whatever of them are tests."""
    asked = {*job["asked"], *([job["entry"]] if job["entry"] else [])}
    names = Names(program, set().union(*map(dotted, trees)), asked)
    program.names = names
    sys.modules["solution"] = Module("solution", program)
    _give_header(job["header"], asked, names, program)
    setup, *tests = map(rewritten, trees)
    exec(setup, names)
    for code in tests:
        yield lambda code=code: _run_piece(code, names, job["entry"], program)  # type: ignore[misc]


def _give_header(header: str, asked: set[str], names: Names, program: Program) -> None:
    """Helpers of the prompt's are the tests' own, but for what is asked for; its classes are the program's, which has
    them too, so that both mean the same."""
    before = set(names)
    exec(compile(header, "prompt.py", "exec", dont_inherit=True), names)
    for name in set(names) - before:
        is_class = isinstance(names[name], type) and names[name].__module__ == names["__name__"]
        if name in asked or (is_class and program.ask("has", name)):
            del names[name]


def _run_piece(code: CodeType, names: Names, entry: str | None, program: Program) -> None:
    before = dict(names)
    exec(code, names)
    program.settle()
    new = {name: value for name, value in names.items() if name not in before or before[name] is not value}
    Tests(new, lambda: program.ask("candidate") if entry is None else program.ask("name", entry)).run(names)
    program.settle()


def same(value: Any, expected: Any) -> bool:
    """Equal, as JSON would have it: tuples are lists, keys are text, and floats are near."""
    if type(value).__module__ == "numpy":
        value = value.tolist()
    if isinstance(expected, list | tuple) and isinstance(value, list | tuple):
        return len(value) == len(expected) and all(map(same, value, expected))
    if isinstance(expected, dict) and isinstance(value, dict):
        spelled = {str(key): item for key, item in value.items()}
        wanted = {str(key): item for key, item in expected.items()}
        return spelled.keys() == wanted.keys() and all(same(spelled[key], wanted[key]) for key in wanted)
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if isinstance(value, int | float) and isinstance(expected, int | float) and float in (type(value), type(expected)):
        return is_near(value, expected)
    return type(value) is type(expected) and bool(value == expected)


def is_near(value: float, expected: float) -> bool:
    """By a millionth; of large numbers that are not whole, by a thousandth of a millionth of them."""
    relative = 0.0 if isinstance(expected, int) or expected.is_integer() else RELATIVE
    with suppress(OverflowError):
        return math.isclose(value, expected, rel_tol=relative, abs_tol=TOLERANCE)
    return False


def _line(error: BaseException) -> str:
    """What was raised, and in which line of the tests."""
    try:
        said = "".join(traceback.format_exception_only(error)).strip()
    except BaseException:  # an exception of the program's, asked for its text
        said = type(error).__name__
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == FILE]
    where = f" (line {lines[-1]} of the tests)" if lines else ""
    return f"{said}{where}"[:LONGEST_DETAIL]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"
