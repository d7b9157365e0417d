"""Collects and runs the tests that a snippet defines: `CollectedTests(new, candidate, fixtures).run(names)`.

Collected are `check(candidate)`, functions `test…`, classes `Test…` with their setup and teardown, and unittest's test
cases; async ones too. An argument is a fixture, a parameter or the candidate. The first test that fails raises.
"""

import inspect
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any

from freerun.sandbox.inside.proxies import is_proxy
from freerun.sandbox.inside.pytest_subset import Fixture, Skipped, calls_of

Candidate = Callable[[], Any]


class CollectedTests:
    def __init__(self, new: dict[str, Any], candidate: Candidate, fixtures: dict[str, Fixture]) -> None:
        """`new` are the names that the snippet defined, `fixtures` those that need no definition."""
        self._new = new
        self._candidate = candidate
        self._fixtures = dict(fixtures)

    def run(self, names: dict[str, Any]) -> None:
        """`names` are all names, those of earlier snippets included; there may be fixtures among them."""
        self._fixtures |= {value.name or name: value for name, value in names.items() if isinstance(value, Fixture)}
        functions = {name: value for name, value in self._new.items() if type(value) is FunctionType}
        tests = [value for name, value in functions.items() if name.startswith("test")]
        classes = [value for value in self._new.values() if isinstance(value, type) and not is_proxy(value)]
        cases = [kind for kind in classes if kind.__name__.startswith("Test") or _is_case(kind)]
        if "check" in functions:
            tests.insert(0, functions["check"])
        elif not tests and not cases:
            tests = [function for function in functions.values() if list(_parameters(function)) == ["candidate"]]
        with _setup(names.get("setup_module"), names.get("teardown_module")):
            for test in tests:
                with _setup(names.get("setup_function"), names.get("teardown_function"), test):
                    self._call(test)
            for kind in cases:
                _run_case(kind) if _is_case(kind) else self._run_class(kind)

    def _run_class(self, kind: type) -> None:
        """Run a class as pytest does, with a new instance for each of its tests."""
        own = {name: value for base in reversed(kind.__mro__) for name, value in vars(base).items()}
        fixtures = {value.name or name: value for name, value in own.items() if isinstance(value, Fixture)}
        outer, self._fixtures = self._fixtures, {**self._fixtures, **fixtures}
        with _setup(getattr(kind, "setup_class", None), getattr(kind, "teardown_class", None)):
            for name in [name for name, value in own.items() if name.startswith("test") and callable(value)]:
                instance = kind()
                hooks = [("setup_method", "teardown_method"), ("setUp", "tearDown"), ("setup", "teardown")]
                with ExitStack() as stack:
                    for begin, end in hooks:
                        stack.enter_context(_setup(getattr(instance, begin, None), getattr(instance, end, None), name))
                    self._call(getattr(instance, name), instance)
        self._fixtures = outer

    def _call(self, test: Callable[..., Any], instance: Any = None) -> None:
        """Call a test once for every set of parameters that it is marked with."""
        for given in calls_of(test):
            with ExitStack() as stack:
                values = dict(given)
                for name, fixture in self._fixtures.items():
                    if fixture.autouse:
                        self._value(name, stack, values, instance)
                parameters = _parameters(test)
                for name, is_required in parameters.items():
                    if is_required or name in self._fixtures:
                        self._value(name, stack, values, instance)
                arguments = {name: values[name] for name in parameters if name in values}
                try:
                    run_if_async(test(**arguments))
                except Skipped:
                    continue

    def _value(self, name: str, stack: ExitStack, values: dict[str, Any], instance: Any) -> Any:
        """An argument's value: given, or made by its fixture, or else the candidate."""
        if name in values:
            return values[name]
        fixture = self._fixtures.get(name)
        if fixture is None:
            if name in _UNSUPPORTED_FIXTURES:
                raise TypeError(f"the fixture {name} is not supported here")
            values[name] = self._candidate()
            return values[name]
        parameters = _parameters(fixture.make)
        others = [other for other in parameters if other != "self" and other != "request"]
        arguments = {other: self._value(other, stack, values, instance) for other in others}
        if "self" in parameters:
            arguments["self"] = instance
        if "request" in parameters:
            arguments["request"] = fixture
        values[name] = stack.enter_context(_fixture_value(fixture.make(**arguments)))
        return values[name]


_UNSUPPORTED_FIXTURES = frozenset({"capfd", "caplog", "tmpdir", "mocker", "benchmark", "event_loop"})


def run_if_async(result: Any) -> Any:
    """Run what an async function returned to its end; return any other result as it is."""
    if inspect.iscoroutine(result):
        import asyncio

        return asyncio.run(result)
    return result


@contextmanager
def _fixture_value(value: Any) -> Iterator[Any]:
    """A fixture's value; afterwards, what the fixture does after its yield."""
    if not isinstance(value, Generator):
        yield run_if_async(value)
        return
    try:
        yield next(value)
    finally:
        next(value, None)


@contextmanager
def _setup(begin: Any, end: Any, *about: Any) -> Iterator[None]:
    """Call `begin` before and `end` after, with what they are about if they take an argument."""
    if callable(begin):
        run_if_async(begin(*about[: len(_parameters(begin))]))
    yield
    if callable(end):
        run_if_async(end(*about[: len(_parameters(end))]))


def _parameters(function: Callable[..., Any]) -> dict[str, bool]:
    """The names of its parameters, and whether each is required."""
    if type(function) is FunctionType and not hasattr(function, "__wrapped__") and not function.__kwdefaults__:
        code = function.__code__  # as below, and much faster
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        required = code.co_argcount - len(function.__defaults__ or ())
        return {name: place < required or place >= code.co_argcount for place, name in enumerate(names)}
    various = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    found = inspect.signature(function).parameters
    return {name: one.default is one.empty for name, one in found.items() if one.kind not in various}


def _is_case(kind: type) -> bool:
    unittest = sys.modules.get("unittest")  # if nobody has imported it, there is no test case
    return unittest is not None and issubclass(kind, unittest.TestCase)


def _run_case(kind: type) -> None:
    import unittest

    assert issubclass(kind, unittest.TestCase)
    result = unittest.TestLoader().loadTestsFromTestCase(kind).run(unittest.TestResult())
    for _, trace in [*result.failures, *result.errors]:
        raise AssertionError(trace.strip().splitlines()[-1])
    if result.unexpectedSuccesses:
        raise AssertionError("a test that should fail did not")
