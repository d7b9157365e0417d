"""What of a piece of tests is run for its name, after the piece itself: `run_collected(new, candidate)`.

`check(candidate)`, functions `test…`, classes `Test…` with their setup and teardown, and cases of unittest; async ones
too. Arguments are fixtures, parameters or the candidate. The first that fails raises.
"""

import inspect
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any

from freerun.sandbox.inside.proxies import is_mirrored
from freerun.sandbox.inside.pytest_subset import Fixture, Skipped, calls_of

Candidate = Callable[[], Any]


class Tests:
    def __init__(self, new: dict[str, Any], candidate: Candidate) -> None:
        """`new`: the names that the piece defined."""
        self._new = new
        self._candidate = candidate
        self._fixtures: dict[str, Fixture] = {}

    def run(self, known: dict[str, Any]) -> None:
        """`known`: all names, those of pieces before it included, in which there may be fixtures."""
        self._fixtures = {value.name or name: value for name, value in known.items() if isinstance(value, Fixture)}
        functions = {name: value for name, value in self._new.items() if type(value) is FunctionType}
        tests = [value for name, value in functions.items() if name.startswith("test")]
        classes = [value for value in self._new.values() if isinstance(value, type) and not is_mirrored(value)]
        cases = [kind for kind in classes if kind.__name__.startswith("Test") or _is_case(kind)]
        if "check" in functions:
            tests.insert(0, functions["check"])
        elif not tests and not cases:
            tests = [function for function in functions.values() if list(_parameters(function)) == ["candidate"]]
        with _around(known.get("setup_module"), known.get("teardown_module")):
            for test in tests:
                with _around(known.get("setup_function"), known.get("teardown_function"), test):
                    self._call(test)
            for kind in cases:
                _run_case(kind) if _is_case(kind) else self._run_class(kind)

    def _run_class(self, kind: type) -> None:
        """As pytest does: a new object for each of its tests."""
        own = {name: value for base in reversed(kind.__mro__) for name, value in vars(base).items()}
        fixtures = {value.name or name: value for name, value in own.items() if isinstance(value, Fixture)}
        outer, self._fixtures = self._fixtures, {**self._fixtures, **fixtures}
        with _around(getattr(kind, "setup_class", None), getattr(kind, "teardown_class", None)):
            for name in [name for name, value in own.items() if name.startswith("test") and callable(value)]:
                made = kind()
                ways = [("setup_method", "teardown_method"), ("setUp", "tearDown"), ("setup", "teardown")]
                with ExitStack() as around:
                    for begin, end in ways:
                        around.enter_context(_around(getattr(made, begin, None), getattr(made, end, None), name))
                    self._call(getattr(made, name), made)
        self._fixtures = outer

    def _call(self, test: Callable[..., Any], made: Any = None) -> None:
        """Once for every set of parameters that it is marked with."""
        for given in calls_of(test):
            with ExitStack() as used:
                values = dict(given)
                for name, fixture in self._fixtures.items():
                    if fixture.autouse:
                        self._value(name, used, values, made)
                parameters = _parameters(test)
                for name, is_needed in parameters.items():
                    if is_needed or name in self._fixtures:
                        self._value(name, used, values, made)
                wanted = {name: values[name] for name in parameters if name in values}
                try:
                    finished(test(**wanted))
                except Skipped:
                    continue

    def _value(self, name: str, used: ExitStack, values: dict[str, Any], made: Any) -> Any:
        """An argument's value: given, or made by its fixture, or else the candidate."""
        if name in values:
            return values[name]
        fixture = self._fixtures.get(name)
        if fixture is None:
            if name in _OTHERS:
                raise TypeError(f"the fixture {name} is not to be had here")
            values[name] = self._candidate()
            return values[name]
        needed = [need for need in _parameters(fixture.make) if need != "self" and need != "request"]
        arguments = {need: self._value(need, used, values, made) for need in needed}
        if "self" in _parameters(fixture.make):
            arguments["self"] = made
        if "request" in _parameters(fixture.make):
            arguments["request"] = fixture
        values[name] = used.enter_context(_made(fixture.make(**arguments)))
        return values[name]


_OTHERS = {"capsys", "capfd", "caplog", "monkeypatch", "tmp_path", "tmpdir", "mocker", "benchmark", "event_loop"}


def finished(result: Any) -> Any:
    """What an async function returned is run to its end."""
    if inspect.iscoroutine(result):
        import asyncio

        return asyncio.run(result)
    return result


@contextmanager
def _made(value: Any) -> Iterator[Any]:
    """A fixture's value, and what it does after its yield."""
    if not isinstance(value, Generator):
        yield finished(value)
        return
    yield next(value)
    next(value, None)


@contextmanager
def _around(begin: Any, end: Any, *about: Any) -> Iterator[None]:
    """`begin` and `end` are given what they are about if they ask for it."""
    if callable(begin):
        finished(begin(*about[: len(_parameters(begin))]))
    yield
    if callable(end):
        finished(end(*about[: len(_parameters(end))]))


def _parameters(function: Callable[..., Any]) -> dict[str, bool]:
    """Their names, and whether there is no default."""
    if type(function) is FunctionType and not hasattr(function, "__wrapped__") and not function.__kwdefaults__:
        code = function.__code__  # as below, and much faster
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        needed = code.co_argcount - len(function.__defaults__ or ())
        return {name: place < needed or place >= code.co_argcount for place, name in enumerate(names)}
    various = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    found = inspect.signature(function).parameters
    return {name: one.default is one.empty for name, one in found.items() if one.kind not in various}


def _is_case(kind: type) -> bool:
    unittest = sys.modules.get("unittest")  # without it, it cannot be one
    return unittest is not None and issubclass(kind, unittest.TestCase)


def _run_case(kind: type) -> None:
    import unittest

    assert issubclass(kind, unittest.TestCase)
    result = unittest.TestLoader().loadTestsFromTestCase(kind).run(unittest.TestResult())
    for _, trace in [*result.failures, *result.errors]:
        raise AssertionError(trace.strip().splitlines()[-1])
    if result.unexpectedSuccesses:
        raise AssertionError("a test that should fail did not")
