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
from types import CodeType
from typing import Any, NoReturn

from freerun.rewards.sandbox.inside.remote import CannotBeSent, Link, Module, Names, is_the_programs

PROGRAM_ENDED = 3
"""Our exit code, so that init waits for the program's own."""
TOLERANCE = 1e-6
LONGEST_DETAIL = 500

Say = Callable[[dict[str, Any]], None]


def examine(job: dict[str, Any], channel: socket.socket, say: Say) -> NoReturn:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the program shares our user, and may send some

    def on_break(why: str) -> NoReturn:
        say({"broken": why})
        os._exit(PROGRAM_ENDED)

    link = Link(channel, on_break)
    match link.hear():
        case ["loaded"]:
            pass
        case ["unreadable", str(why)]:
            say({"unreadable": why[:LONGEST_DETAIL]})
            os._exit(0)
        case ["failed", str(why)]:
            say({"failed": why[:LONGEST_DETAIL]})
            os._exit(0)
        case _:
            on_break("the program broke the line to its tests")
    try:
        tests = list(_calls(job, link) if job["calls"] is not None else _asserts(job, link))
    except BaseException as error:  # what comes before the first test needs the program too, which failed it
        _end(error, {"failed": _line(error)}, say)
    for index, test in enumerate(tests):
        _examine_one(index, test, say)
    say({"done": True})
    os._exit(0)


def _examine_one(index: int, test: Callable[[], None], say: Say) -> None:
    try:
        test()
    except BaseException as error:  # SystemExit too: only a test that comes to its end has been passed
        if _is_unfit(error):
            _end(error, {}, say)
        say({"test": index, "ok": False, "detail": _line(error)})
    else:
        say({"test": index, "ok": True, "detail": ""})


def _end(error: BaseException, otherwise: dict[str, Any], say: Say) -> NoReturn:
    say({"unfit": _line(error)} if _is_unfit(error) else otherwise)
    os._exit(0)


def _is_unfit(error: BaseException) -> bool:
    """No program could pass: a fault of the task, which must not be counted as one of the answer."""
    return isinstance(error, CannotBeSent | ImportError | SyntaxError) and not is_the_programs(error)


def _calls(job: dict[str, Any], link: Link) -> Iterator[Callable[[], None]]:
    """Arguments in, a value out, compared here."""
    function = link.ask("name", job["entry"])

    def compare(arguments: list[Any], accepted: list[Any]) -> None:
        called = f"{job['entry']}({', '.join(map(_short, arguments))})"
        result = function(*arguments)
        if not any(same(result, expected) for expected in accepted):
            raise AssertionError(f"{called} is {_short(result)}, not {_short(accepted[0])}")

    for arguments, accepted in job["calls"]:
        yield lambda arguments=arguments, accepted=accepted: compare(arguments, accepted)  # type: ignore[misc]


def _asserts(job: dict[str, Any], link: Link) -> Iterator[Callable[[], None]]:
    """Pieces of Python, run one after another with the same names; then whatever functions of theirs are tests."""
    pieces = [_compile(source) for source in (job["setup"], *job["tests"])]
    names = Names(link, set().union(*(dotted for _, dotted in pieces)))
    sys.modules["solution"] = Module("solution", link)
    given: dict[str, Any] = {}
    exec(job["header"], given)
    names.update({name: value for name, value in given.items() if name not in ("__builtins__", job["entry"])})
    setup, *tests = (code for code, _ in pieces)
    exec(setup, names)
    for code in tests:
        yield lambda code=code: _run_piece(code, names, job["entry"])  # type: ignore[misc]


def _run_piece(code: CodeType, names: Names, entry: str | None) -> None:
    before = set(names)
    exec(code, names)
    new = {name: value for name, value in names.items() if name not in before}
    if callable(check := new.get("check")):
        check(names[entry] if entry is not None else None)
    for name, value in new.items():
        if isinstance(value, type):
            _run_test_case(value)
        elif name.startswith("test_") and callable(value):
            value()


def _run_test_case(kind: type) -> None:
    if "unittest" not in sys.modules:  # then it cannot be one of its test cases
        return
    import unittest

    if issubclass(kind, unittest.TestCase):
        result = unittest.TestLoader().loadTestsFromTestCase(kind).run(unittest.TestResult())
        for _, trace in [*result.failures, *result.errors]:
            raise AssertionError(trace.strip().splitlines()[-1])


def _compile(source: str) -> tuple[CodeType, set[str]]:
    tree = ast.parse(source, "tests.py")
    dotted = {
        node.value.id for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    return compile(tree, "tests.py", "exec"), dotted


def same(value: Any, expected: Any) -> bool:
    """Equal, as JSON would have it: tuples are lists, keys are text, and floats differ by a millionth at most."""
    if isinstance(expected, list | tuple) and isinstance(value, list | tuple):
        return len(value) == len(expected) and all(map(same, value, expected))
    if isinstance(expected, dict) and isinstance(value, dict):
        spelled = {str(key): item for key, item in value.items()}
        wanted = {str(key): item for key, item in expected.items()}
        return spelled.keys() == wanted.keys() and all(same(spelled[key], wanted[key]) for key in wanted)
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if isinstance(value, int | float) and isinstance(expected, int | float) and float in (type(value), type(expected)):
        with suppress(OverflowError):
            return math.isclose(value, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        return False
    return type(value) is type(expected) and bool(value == expected)


def _line(error: BaseException) -> str:
    """What was raised, and in which line of the tests."""
    said = "".join(traceback.format_exception_only(error)).strip()
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == "tests.py"]
    where = f" (line {lines[-1]} of the tests)" if lines else ""
    return f"{said}{where}"[:LONGEST_DETAIL]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"
