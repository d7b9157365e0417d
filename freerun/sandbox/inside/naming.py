"""How an object is described to the other side: by a name that both sides know, or by what its class is like."""

import operator
import sys
import types
from importlib import import_module
from typing import Any

from freerun.sandbox.inside import codec
from freerun.sandbox.inside.proxies import COLLECTIONS, SPECIAL_METHODS, VALUE_TYPES

_INTERNAL = {kind: name for name, kind in vars(types).items() if isinstance(kind, type) and name != "LambdaType"}
PLAIN_MODULES = frozenset(
    {"builtins", "collections", "collections.abc", "datetime", "decimal", "enum", "fractions", "numbers", "types"}
    | {"array", "pathlib", "uuid", "abc", "string"}
)
"""The modules whose classes a program may refer to by name."""


def describe(value: Any, packer: codec.Packer) -> dict[str, Any]:
    """What the other side needs to create a proxy for an object."""
    if isinstance(value, type):
        bases = [packer.pack(base) for base in value.__bases__ if base is not object]
        return {"type": [value.__name__, bases, special_methods_of(value), packer.pack(nearest_shared_class(value))]}
    kind = type(value)
    if (name := global_name(kind)) or kind in _INTERNAL:
        return {"like": name or f"types.{_INTERNAL[kind]}", "special": special_methods_of(kind)}
    if isinstance(value, BaseException):
        return {"class": packer.pack(kind), "value": packer.pack(list(value.args))}
    if (base_type := next((base for base in VALUE_TYPES if isinstance(value, base)), None)) is not None:
        return {"class": packer.pack(kind), "value": packer.pack(_immutable_value(base_type, value))}
    return {"class": packer.pack(kind)}


def _immutable_value(base: type, value: Any) -> Any:
    """The value as an instance of the base type, whatever its own class overrides."""
    if base is str:
        return str.__str__(value)
    if base is bytes:
        return bytes(memoryview(value))
    kind: Any = base
    return kind(kind.__iter__(value)) if kind in (tuple, frozenset) else kind.__pos__(value)


def special_methods_of(kind: type) -> list[str]:
    """The special methods that a class overrides, compared with its immutable base type or with `object`."""
    base: type = next((base for base in VALUE_TYPES if issubclass(kind, base)), object)
    found: dict[str, Any] = {}
    for above in kind.__mro__:
        found = {**{name: method for name, method in vars(above).items() if name in SPECIAL_METHODS}, **found}
    return [name for name, method in found.items() if method is not None and method is not getattr(base, name, None)]


def nearest_shared_class(kind: type) -> type | None:
    """The nearest of its base classes that both sides have."""
    known = (above for above in kind.__mro__ if above is not object and above.__module__ in PLAIN_MODULES)
    return next((above for above in known if global_name(above)), None)


def global_name(value: Any) -> str:
    """The name by which both sides find an object of the standard library, such as `datetime.date`; "" for others."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return ""
    if module.partition(".")[0] not in sys.stdlib_module_names:
        return ""
    try:
        return f"{module}.{name}" if operator.attrgetter(name)(sys.modules[module]) is value else ""
    except (AttributeError, KeyError):
        return ""


def find_global(name: str) -> Any:
    module, _, attribute = name.rpartition("." if not name.endswith(":") else ":")
    if module.partition(".")[0] not in sys.stdlib_module_names:
        raise ValueError(name)
    found = import_module(module)
    return getattr(found, attribute) if attribute else found


def call_special(thing: Any, name: str, *operands: Any) -> Any:
    if name not in SPECIAL_METHODS:
        raise AttributeError(name)
    return getattr(type(thing), name)(thing, *operands)


def contents_of(thing: Any) -> Any:
    """The contents of an instance of a list, dict or set subclass, as a plain list, dict or set."""
    base = next(base for base in COLLECTIONS if isinstance(thing, base))
    return base(base.items(thing)) if base is dict else base(base.__iter__(thing))  # type: ignore[attr-defined]
