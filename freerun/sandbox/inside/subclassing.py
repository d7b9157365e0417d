"""Classes of the tests that derive from a class of the program.

Such a class is created in the program, where its instances live, and the tests get its proxy class. Methods that the
tests define stay with the tests: the program's class has stubs that call them back. Attributes that are plain values
are copied to the program.
"""

import builtins
import sys
from collections.abc import Callable
from types import FunctionType, new_class
from typing import Any

from freerun.sandbox.inside.naming import global_name
from freerun.sandbox.inside.proxies import Peer, ProxyClass, is_proxy, state

_KEPT_BY_TESTS = {"__module__", "__qualname__", "__doc__", "__annotations__", "__classcell__", "__firstlineno__"}


def define_subclass(
    peer: Peer, name: str, bases: tuple[type, ...], namespace: dict[str, Any], options: dict[str, Any]
) -> ProxyClass:
    """Create a subclass in the program for a class statement of the tests, and return its proxy class."""
    for base in bases:
        if not is_proxy(base) and not global_name(base):
            raise TypeError(
                f"{name} cannot derive from {base.__name__} of the tests and a class of the program at once"
            )
    attributes = {key: _encode(value) for key, value in namespace.items() if key not in _KEPT_BY_TESTS}
    made = peer.ask("subclass", name, bases, attributes, options)
    if not isinstance(made, ProxyClass):
        raise TypeError(f"the program did not create {name}")
    for key, value in namespace.items():
        if key != "__classcell__" and (key in _KEPT_BY_TESTS or _encode(value)[0] != "value"):
            type.__setattr__(made, key, value)
    if "__eq__" in namespace and "__hash__" not in namespace:
        type.__setattr__(made, "__hash__", None)
    if (cell := namespace.get("__classcell__")) is not None:
        cell.cell_contents = made  # what `super()` and `__class__` refer to in its methods
    return made


def _encode(value: Any) -> tuple[Any, ...]:
    match value:
        case FunctionType():
            return "method", value
        case staticmethod():
            return "staticmethod", value.__func__
        case classmethod():
            return "classmethod", value.__func__
        case property():
            return "property", value.fget, value.fset, value.fdel
    return "value", value


def create_subclass(name: str, bases: tuple[type, ...], attributes: dict[str, Any], options: dict[str, Any]) -> type:
    """In the program: create the class that `define_subclass` asks for."""

    def fill(namespace: dict[str, Any]) -> None:
        namespace["__module__"] = "__main__"
        for key, (kind, *values) in attributes.items():
            namespace[key] = _BUILDERS[kind](*values)

    return new_class(name, bases, options, fill)


def _stub(callback: Any) -> Any:
    """A function that calls a method of the tests."""
    if callback is None:
        return None

    def call(*args: Any, **named: Any) -> Any:
        return callback(*args, **named)

    return call


_BUILDERS: dict[str, Callable[..., Any]] = {
    "method": _stub,
    "staticmethod": lambda function: staticmethod(_stub(function)),
    "classmethod": lambda function: classmethod(_stub(function)),
    "property": lambda *functions: property(*map(_stub, functions)),
    "value": lambda value: value,
}


class SuperProxy:
    """`super()` in a method of such a class: looks attributes up in the program."""

    def __init__(self, kind: ProxyClass, instance: Any) -> None:
        object.__setattr__(self, "_lookup", (kind, instance))

    def __getattribute__(self, name: str) -> Any:
        kind, instance = object.__getattribute__(self, "_lookup")
        return state(kind)[0].ask("super", kind, instance, name)


def super_of_tests(*args: Any) -> Any:
    """`super` in tests."""
    if not args:
        frame = sys._getframe(1)
        names = frame.f_locals
        if "__class__" not in names or not frame.f_code.co_argcount:
            raise RuntimeError("super(): no arguments")
        args = names["__class__"], names[frame.f_code.co_varnames[0]]
    return SuperProxy(*args) if isinstance(args[0], ProxyClass) else builtins.super(*args)


def super_attribute(kind: type, instance: Any, name: str) -> Any:
    """In the program: look up what `SuperProxy` asks for."""
    return getattr(super(kind, instance), name)
