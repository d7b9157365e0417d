"""The part of pytest that tests commonly use, for containers, which do not have pytest itself: `as_module()`.

raises, approx, parametrize, fixtures, skip.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType, TracebackType
from typing import Any

_MARKS = "_freerun_marks"


class Skipped(BaseException):
    """The test asked to be skipped."""


class Failed(AssertionError):
    pass


@dataclass
class Fixture:
    make: Callable[..., Any]
    name: str = ""
    autouse: bool = False
    param: Any = None

    def __call__(self, *args: Any) -> Any:
        return self.make(*args)


def fixture(make: Any = None, *, name: str = "", autouse: bool = False, params: Any = (), **_: Any) -> Any:
    first = next(iter(params), None) if params else None
    if make is None:
        return lambda function: Fixture(function, name, autouse, first)
    return Fixture(make, name, autouse, first)


class ExceptionInfo:
    value: Any = None
    type: Any = None
    tb: Any = None

    def match(self, pattern: str) -> bool:
        assert re.search(pattern, str(self.value)), f"{str(self.value)!r} does not match {pattern!r}"
        return True


class Raises:
    def __init__(self, expected: Any, match: str | None) -> None:
        self._expected = expected
        self._match = match
        self._info = ExceptionInfo()

    def __enter__(self) -> ExceptionInfo:
        return self._info

    def __exit__(self, kind: Any, error: BaseException | None, trace: TracebackType | None) -> bool:
        if error is None:
            raise Failed(f"DID NOT RAISE {self._expected}")
        if not isinstance(error, self._expected):
            return False
        self._info.value, self._info.type, self._info.tb = error, type(error), trace
        return self._match is None or self._info.match(self._match)


def raises(expected: Any, *call: Any, match: str | None = None, **named: Any) -> Any:
    if not call:
        return Raises(expected, match)
    with Raises(expected, match) as info:
        call[0](*call[1:], **named)
    return info


class Approx:
    """Equals values close to it: within a millionth of it, or 1e-12, unless the test chooses other tolerances."""

    __array_ufunc__ = None
    __array_priority__ = 100

    def __init__(self, expected: Any, rel: float | None = None, abs: float | None = None, nan_ok: bool = False) -> None:
        self._expected = expected
        self._rel, self._abs, self._nan_ok = rel, abs, nan_ok

    def __eq__(self, actual: object) -> bool:
        return self._is_close(actual, self._expected)

    def __hash__(self) -> int:
        raise TypeError("approx cannot be hashed")

    def __repr__(self) -> str:
        return f"approx({self._expected!r})"

    def _is_close(self, actual: Any, expected: Any) -> bool:
        if hasattr(expected, "tolist"):
            expected = expected.tolist()
        if hasattr(actual, "tolist"):
            actual = actual.tolist()
        if isinstance(expected, Mapping):
            same_keys = isinstance(actual, Mapping) and actual.keys() == expected.keys()
            return same_keys and all(self._is_close(actual[key], expected[key]) for key in expected)
        if isinstance(expected, Sequence) and not isinstance(expected, str | bytes):
            same_length = isinstance(actual, Sequence) and len(actual) == len(expected)
            return same_length and all(self._is_close(a, e) for a, e in zip(actual, expected, strict=True))
        if isinstance(expected, bool) or not isinstance(expected, int | float | complex):
            return bool(actual == expected) or self._is_close_number(actual, expected)
        return self._is_close_number(actual, expected)

    def _is_close_number(self, actual: Any, expected: Any) -> bool:
        try:
            if actual == expected:
                return True
            if self._nan_ok and math.isnan(actual) and math.isnan(expected):
                return True
            if math.isinf(abs(expected)):
                return False
            relative = (1e-6 if self._abs is None else 0.0) if self._rel is None else self._rel
            tolerance = max(relative * abs(expected), 1e-12 if self._abs is None else self._abs)
            return bool(abs(actual - expected) <= tolerance)
        except TypeError:
            return False


class Mark:
    """`pytest.mark`: parametrize, skip, skipif and xfail have an effect, others have none."""

    def __getattr__(self, name: str) -> Any:
        return _Marker(name)


class _Marker:
    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **named: Any) -> Any:
        if len(args) == 1 and not named and callable(args[0]):
            return _marked(args[0], (self._name, (), {}))
        return lambda function: _marked(function, (self._name, args, named))


def _marked(function: Any, mark: tuple[str, tuple[Any, ...], dict[str, Any]]) -> Any:
    setattr(function, _MARKS, [*getattr(function, _MARKS, []), mark])
    return function


@dataclass
class Param:
    values: tuple[Any, ...]


def param(*values: Any, **_: Any) -> Param:
    return Param(values)


def calls_of(test: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    """The arguments of each call that a test's marks ask for: a single call without arguments if it has no marks."""
    marks = [*getattr(test, _MARKS, []), *getattr(type(getattr(test, "__self__", None)), _MARKS, [])]
    for name, args, _ in marks:
        if name == "skip" or (name == "skipif" and args and args[0]) or name == "xfail":
            return
    sets = [list(_parameter_sets(*args, **named)) for name, args, named in reversed(marks) if name == "parametrize"]
    for chosen in itertools.product(*sets):
        yield {name: value for one in chosen for name, value in one.items()}


def _parameter_sets(argnames: Any, argvalues: Any, **_: Any) -> Iterator[dict[str, Any]]:
    names = [name.strip() for name in argnames.split(",")] if isinstance(argnames, str) else list(argnames)
    for values in argvalues:
        each = values.values if isinstance(values, Param) else (values,) if len(names) == 1 else values
        yield dict(zip([name for name in names if name], each, strict=True))


def fail(reason: str = "", **_: Any) -> None:
    raise Failed(reason)


def skip(reason: str = "", **_: Any) -> None:
    raise Skipped(reason)


def as_module() -> ModuleType:
    module = ModuleType("pytest")
    names: dict[str, Any] = {"raises": raises, "approx": Approx, "fixture": fixture, "mark": Mark(), "param": param}
    names |= {"fail": fail, "skip": skip, "main": lambda *args, **named: 0, "ExceptionInfo": ExceptionInfo}
    names |= {"importorskip": __import__, "Skipped": Skipped}
    vars(module).update(names)
    return module
