"""Plain values: the types that are sent by value, and how each is encoded and rebuilt.

A value must have exactly one of these types. An instance of a program's subclass is not a plain value, because its
`__eq__` cannot be trusted.
"""

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from importlib import import_module
from types import EllipsisType, NotImplementedType
from typing import Any

CONTAINERS: frozenset[type] = frozenset({list, dict, set, deque, bytearray, Counter, OrderedDict, defaultdict})
"""The mutable types."""
EMPTY: dict[str, Callable[[], Any]] = {
    "dict": dict,
    "set": set,
    "deque": deque,
    "bytearray": bytearray,
    "Counter": Counter,
    "OrderedDict": OrderedDict,
    "defaultdict": defaultdict,
}

Encoding = tuple[Callable[[Any], tuple[Any, ...]], Callable[..., Any]]
"""How to get a value's fields, and how to build a value from them."""


def _datetime_fields(when: datetime) -> tuple[Any, ...]:
    return (*when.timetuple()[:6], when.microsecond, when.tzinfo, when.fold)


def _build_datetime(*fields: Any) -> datetime:
    return datetime(*fields[:8], fold=fields[8])


_ENCODINGS: dict[type, Encoding] = {
    complex: (lambda z: (z.real, z.imag), complex),
    range: (lambda r: (r.start, r.stop, r.step), range),
    slice: (lambda s: (s.start, s.stop, s.step), slice),
    Decimal: (lambda d: (str(d),), Decimal),
    Fraction: (lambda f: (f.numerator, f.denominator), Fraction),
    date: (lambda d: (d.year, d.month, d.day), date),
    datetime: (_datetime_fields, _build_datetime),
    time: (lambda t: (t.hour, t.minute, t.second, t.microsecond, t.tzinfo), time),
    timedelta: (lambda d: (d.days, d.seconds, d.microseconds), timedelta),
    timezone: (lambda z: (z.utcoffset(None), z.tzname(None)), timezone),
    EllipsisType: (lambda _: (), lambda: ...),
    NotImplementedType: (lambda _: (), lambda: NotImplemented),
}
_IMPORTED_ON_USE: dict[str, tuple[str, Callable[[Any], tuple[Any, ...]]]] = {
    "UUID": ("uuid", lambda u: (None, None, None, None, u.int)),
    "PosixPath": ("pathlib", lambda p: (str(p),)),
    "PurePosixPath": ("pathlib", lambda p: (str(p),)),
    "ZoneInfo": ("zoneinfo", lambda z: (z.key,)),
    "Pattern": ("re", lambda p: (p.pattern, p.flags)),
}
"""Types from modules that are imported only if a value of the type is sent."""
_BUILDERS = {kind.__name__: build for kind, (_, build) in _ENCODINGS.items()}


def fields_of(value: Any) -> tuple[str, tuple[Any, ...]] | None:
    """The name of its type, and its fields; None if it is not a plain value."""
    kind = type(value)
    if kind in _ENCODINGS:
        return kind.__name__, _ENCODINGS[kind][0](value)
    if (late := _IMPORTED_ON_USE.get(kind.__name__)) and kind.__module__ == late[0]:
        return kind.__name__, late[1](value)
    if kind.__module__ == "numpy" and is_scalar(value):
        return "numpy", (value.dtype.str, value.tobytes())
    if isinstance(value, BaseException) and kind.__module__ == "builtins":
        return "error", (kind.__name__, *value.args)
    return None


def rebuild(name: str, fields: list[Any]) -> Any:
    """The value whose type name and fields `fields_of` returned."""
    if name in _BUILDERS:
        return _BUILDERS[name](*fields)
    if name == "Pattern":
        return import_module("re").compile(*fields)
    if name in _IMPORTED_ON_USE:
        return getattr(import_module(_IMPORTED_ON_USE[name][0]), name)(*fields)
    if name == "numpy":
        return import_module("numpy").frombuffer(fields[1], fields[0])[0]
    if name == "error":
        return _build_error(*fields)
    raise ValueError(name)


def _build_error(name: str, *args: Any) -> BaseException:
    kind = getattr(sys.modules["builtins"], name)
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        raise ValueError(name)
    try:
        return kind(*args)
    except TypeError:  # UnicodeDecodeError and a few others take other arguments than they keep
        return kind.__new__(kind)


def is_array(kind: type) -> bool:
    """Whether it is numpy's array type. Does not import numpy."""
    if not hasattr(kind, "__array_finalize__"):
        return False
    numpy = sys.modules.get("numpy")
    return numpy is not None and issubclass(kind, numpy.ndarray)


def is_scalar(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "tobytes") and value.dtype.kind in "biufcMmSU"


def contents_of(container: Any) -> tuple[str, list[Any]]:
    """The name of a container's type, and what to rebuild it from."""
    kind = type(container)
    if is_array(kind):
        if container.dtype.kind in "biufcMmSU":
            return "ndarray", [container.dtype.str, container.shape, container.tobytes()]
        return "ndarray", ["O", container.shape, container.astype(object).ravel().tolist()]
    if kind is bytearray:
        return "bytearray", [bytes(container)]
    if kind is deque:
        return "deque", [container.maxlen, *container]
    if kind is set:
        return "set", list(container)
    pairs = [item for pair in container.items() for item in pair]
    return kind.__name__, [container.default_factory, *pairs] if kind is defaultdict else pairs


def build_array(fields: list[Any]) -> Any:
    numpy = import_module("numpy")
    dtype, shape, data = fields
    if dtype != "O":
        return numpy.frombuffer(data, dtype).reshape(shape).copy()
    array = numpy.empty(len(data), object)
    array[:] = data
    return array.reshape(shape)


def empty(name: str, contents: list[Any]) -> Any:
    return deque(maxlen=contents[0]) if name == "deque" else EMPTY[name]()


def fill(container: Any, contents: list[Any]) -> None:
    """Fill an empty container with what `contents_of` returned."""
    match container:
        case bytearray():
            container += contents[0]
        case set():
            container.update(contents)
        case deque():
            container.extend(contents[1:])
        case _:
            if type(container) is defaultdict:
                container.default_factory, *contents = contents
            dict.update(container, zip(contents[::2], contents[1::2], strict=True))


def same_type(container: Any, new: Any) -> bool:
    return type(container) is type(new) or (is_array(type(container)) and is_array(type(new)))


def replace(container: Any, new: Any) -> None:
    """Replace a container's contents with those of another of its type."""
    match container:
        case list() | bytearray():
            container[:] = new
        case deque():
            container.clear()
            container.extend(new)
        case set():
            container.clear()
            container.update(new)
        case dict():
            container.clear()
            dict.update(container, new)
        case _:
            container[...] = new
