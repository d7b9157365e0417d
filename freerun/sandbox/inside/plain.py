"""What counts as a plain value, and how each is taken apart and put together again.

Only what is exactly of one of these types: a class of the program's own that derives from one is no plain value, since
its `__eq__` is not to be believed.
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
"""What can be changed by whom it is given to."""
EMPTY: dict[str, Callable[[], Any]] = {
    "dict": dict,
    "set": set,
    "deque": deque,
    "bytearray": bytearray,
    "Counter": Counter,
    "OrderedDict": OrderedDict,
    "defaultdict": defaultdict,
}

Parts = tuple[Callable[[Any], tuple[Any, ...]], Callable[..., Any]]


def _moment(when: datetime) -> tuple[Any, ...]:
    return (*when.timetuple()[:6], when.microsecond, when.tzinfo, when.fold)


def _at(*parts: Any) -> datetime:
    return datetime(*parts[:8], fold=parts[8])


_PARTS: dict[type, Parts] = {
    complex: (lambda z: (z.real, z.imag), complex),
    range: (lambda r: (r.start, r.stop, r.step), range),
    slice: (lambda s: (s.start, s.stop, s.step), slice),
    Decimal: (lambda d: (str(d),), Decimal),
    Fraction: (lambda f: (f.numerator, f.denominator), Fraction),
    date: (lambda d: (d.year, d.month, d.day), date),
    datetime: (_moment, _at),
    time: (lambda t: (t.hour, t.minute, t.second, t.microsecond, t.tzinfo), time),
    timedelta: (lambda d: (d.days, d.seconds, d.microseconds), timedelta),
    timezone: (lambda z: (z.utcoffset(None), z.tzname(None)), timezone),
    EllipsisType: (lambda _: (), lambda: ...),
    NotImplementedType: (lambda _: (), lambda: NotImplemented),
}
_LATE: dict[str, tuple[str, Callable[[Any], tuple[Any, ...]]]] = {
    "UUID": ("uuid", lambda u: (None, None, None, None, u.int)),
    "PosixPath": ("pathlib", lambda p: (str(p),)),
    "PurePosixPath": ("pathlib", lambda p: (str(p),)),
    "ZoneInfo": ("zoneinfo", lambda z: (z.key,)),
    "Pattern": ("re", lambda p: (p.pattern, p.flags)),
}
"""Values of modules that are imported only where somebody uses them."""
_BUILD = {kind.__name__: build for kind, (_, build) in _PARTS.items()}


def parts_of(value: Any) -> tuple[str, tuple[Any, ...]] | None:
    """The name of its kind, and what it is made of; None if it is no plain value."""
    kind = type(value)
    if kind in _PARTS:
        return kind.__name__, _PARTS[kind][0](value)
    if (late := _LATE.get(kind.__name__)) and kind.__module__ == late[0]:
        return kind.__name__, late[1](value)
    if kind.__module__ == "numpy" and is_scalar(value):
        return "numpy", (value.dtype.str, value.tobytes())
    if isinstance(value, BaseException) and kind.__module__ == "builtins":
        return "error", (kind.__name__, *value.args)
    return None


def rebuild(name: str, parts: list[Any]) -> Any:
    if name in _BUILD:
        return _BUILD[name](*parts)
    if name == "Pattern":
        return import_module("re").compile(*parts)
    if name in _LATE:
        return getattr(import_module(_LATE[name][0]), name)(*parts)
    if name == "numpy":
        return import_module("numpy").frombuffer(parts[1], parts[0])[0]
    if name == "error":
        return _error(*parts)
    raise ValueError(name)


def _error(name: str, *args: Any) -> BaseException:
    kind = getattr(sys.modules["builtins"], name)
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        raise ValueError(name)
    try:
        return kind(*args)
    except TypeError:  # UnicodeDecodeError and a few others want arguments of their own kind
        return kind.__new__(kind)


def is_array(kind: type) -> bool:
    """Whether it is numpy's array; numpy is not imported here unless the other side has done so."""
    if not hasattr(kind, "__array_finalize__"):
        return False
    numpy = sys.modules.get("numpy")
    return numpy is not None and issubclass(kind, numpy.ndarray)


def is_scalar(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "tobytes") and value.dtype.kind in "biufcMmSU"


def contents_of(container: Any) -> tuple[str, list[Any]]:
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


def array_of(parts: list[Any]) -> Any:
    numpy = import_module("numpy")
    dtype, shape, data = parts
    if dtype != "O":
        return numpy.frombuffer(data, dtype).reshape(shape).copy()
    array = numpy.empty(len(data), object)
    array[:] = data
    return array.reshape(shape)


def empty(name: str, parts: list[Any]) -> Any:
    return deque(maxlen=parts[0]) if name == "deque" else EMPTY[name]()


def fill(container: Any, parts: list[Any]) -> None:
    """An empty one, with what `contents_of` said."""
    match container:
        case bytearray():
            container += parts[0]
        case set():
            container.update(parts)
        case deque():
            container.extend(parts[1:])
        case _:
            if type(container) is defaultdict:
                container.default_factory, *parts = parts
            dict.update(container, zip(parts[::2], parts[1::2], strict=True))


def same_shape(container: Any, new: Any) -> bool:
    return type(container) is type(new) or (is_array(type(container)) and is_array(type(new)))


def replace(container: Any, new: Any) -> None:
    """All that a container holds, by what another of its kind does."""
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
