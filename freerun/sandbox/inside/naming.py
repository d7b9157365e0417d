"""How an object is told to the other side: by a name that both have, or by what its class is like."""

import operator
import sys
import types
from importlib import import_module
from typing import Any

from freerun.sandbox.inside import codec
from freerun.sandbox.inside.proxies import BASES, COLLECTIONS, SPECIAL

_INTERNAL = {kind: name for name, kind in vars(types).items() if isinstance(kind, type) and name != "LambdaType"}
PLAIN_MODULES = frozenset(
    {"builtins", "collections", "collections.abc", "datetime", "decimal", "enum", "fractions", "numbers", "types"}
    | {"array", "pathlib", "uuid", "abc", "string"}
)
"""Whose classes a program may name to its tests."""


def described(value: Any, packer: codec.Packer) -> dict[str, Any]:
    if isinstance(value, type):
        bases = [packer.pack(base) for base in value.__bases__ if base is not object]
        return {"type": [value.__name__, bases, specials(value), packer.pack(_like(value))]}
    kind = type(value)
    if (name := global_name(kind)) or kind in _INTERNAL:
        return {"like": name or f"types.{_INTERNAL[kind]}", "special": specials(kind)}
    if isinstance(value, BaseException):
        return {"class": packer.pack(kind), "value": packer.pack(list(value.args))}
    if (solid := next((base for base in BASES if isinstance(value, base)), None)) is not None:
        return {"class": packer.pack(kind), "value": packer.pack(_solid(solid, value))}
    return {"class": packer.pack(kind)}


def _solid(base: type, value: Any) -> Any:
    """Just what it is as one of these, whatever its class has to say."""
    if base is str:
        return str.__str__(value)
    if base is bytes:
        return bytes(memoryview(value))
    kind: Any = base
    return kind(kind.__iter__(value)) if kind in (tuple, frozenset) else kind.__pos__(value)


def specials(kind: type) -> list[str]:
    """What it does in its own way: not as the plain type it derives from does, or as every object."""
    base: type = next((base for base in BASES if issubclass(kind, base)), object)
    found: dict[str, Any] = {}
    for above in kind.__mro__:
        found = {**{name: method for name, method in vars(above).items() if name in SPECIAL}, **found}
    return [name for name, method in found.items() if method is not None and method is not getattr(base, name, None)]


def _like(kind: type) -> type | None:
    """The nearest class above it that both sides have."""
    known = (above for above in kind.__mro__ if above is not object and above.__module__ in PLAIN_MODULES)
    return next((above for above in known if global_name(above)), None)


def global_name(value: Any) -> str:
    """Where both sides find it, if it is Python's own: `datetime.date`."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return ""
    if module.partition(".")[0] not in sys.stdlib_module_names:
        return ""
    try:
        return f"{module}.{name}" if operator.attrgetter(name)(sys.modules[module]) is value else ""
    except (AttributeError, KeyError):
        return ""


def found_by(name: str) -> Any:
    module, _, attribute = name.rpartition("." if not name.endswith(":") else ":")
    if module.partition(".")[0] not in sys.stdlib_module_names:
        raise ValueError(name)
    found = import_module(module)
    return getattr(found, attribute) if attribute else found


def call_special(thing: Any, name: str, *operands: Any) -> Any:
    if name not in SPECIAL:
        raise AttributeError(name)
    return getattr(type(thing), name)(thing, *operands)


def contents_of(thing: Any) -> Any:
    """What a list, dictionary or set of a derived class holds, as one of Python's own."""
    base = next(base for base in COLLECTIONS if isinstance(thing, base))
    return base(base.items(thing)) if base is dict else base(base.__iter__(thing))  # type: ignore[attr-defined]
