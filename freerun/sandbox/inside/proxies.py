"""Proxies for the objects and classes of the other process.

A class of the other process gets a proxy class here, so that `isinstance`, `except` and `type(x) is C` work. An object
gets an instance of that class; its attributes, methods and operators are forwarded. If a class derives from a number,
a string or a tuple (an IntEnum, a named tuple), so does its proxy class, and its instances are compared by value.

The tests forward an operator to the program only if that reveals nothing the program should find out for itself: if
both operands are the program's own objects, or if the tests created the object by calling its class
(`Vector(1, 2) * 3`). So an object that the program returned cannot claim to equal the expected value.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lshift", "rshift", "and", "or")
OPERATORS = (
    "__contains__",
    *(f"__{side}{name}__" for name in (*_BINARY, "xor", "divmod") for side in ("", "r")),
    *(f"__i{name}__" for name in (*_BINARY, "xor")),
)
"""Forwarded to the program only where it may see the operands, as comparisons are."""
FORWARDED = (
    *("__len__", "__bool__", "__iter__", "__next__", "__reversed__", "__getitem__", "__setitem__", "__delitem__"),
    *("__call__", "__enter__", "__exit__", "__str__", "__repr__", "__format__", "__bytes__", "__hash__", "__int__"),
    *("__float__", "__complex__", "__index__", "__round__", "__trunc__", "__floor__", "__ceil__", "__neg__", "__pos__"),
    *("__abs__", "__invert__", "__fspath__", "__aiter__", "__anext__", "__aenter__", "__aexit__", "__length_hint__"),
)
"""Always forwarded."""
SPECIAL_METHODS = frozenset((*COMPARISONS, *OPERATORS, *FORWARDED, "__await__"))
"""The methods that Python looks up in an object's class and not in the object."""
VALUE_TYPES: tuple[type, ...] = (int, float, str, bytes, tuple, frozenset, complex)
"""The immutable types. The proxy class of a class that derives from one derives from it too."""
COLLECTIONS: tuple[type, ...] = (list, dict, set, deque, bytearray)

_STATE = "_freerun"


class Peer(Protocol):
    """The other process."""

    untrusted: bool
    """Whether it must not learn what its results are compared with."""

    def ask(self, operation: str, *operands: Any, **named: Any) -> Any: ...


class ProxyClass(type):
    """The type of proxy classes."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> "ProxyClass":
        """Called for class statements. `make_class` creates the proxy classes of existing classes."""
        peer = next(state(base)[0] for base in bases if isinstance(base, ProxyClass))
        if not peer.untrusted:
            return super().__new__(cls, name, bases, namespace, **options)
        from freerun.sandbox.inside.subclassing import define_subclass

        return define_subclass(peer, name, bases, namespace, options)

    def __call__(cls, *args: Any, **named: Any) -> Any:
        made = state(cls)[0].ask("call", cls, *args, **named)
        if type(made) is cls:
            mark_as_made_by_tests(made)
        return made

    def __getattr__(cls, name: str) -> Any:
        return state(cls)[0].ask("attribute", cls, name)

    def __setattr__(cls, name: str, value: Any) -> None:
        if name.startswith("__"):
            type.__setattr__(cls, name, value)
        else:
            state(cls)[0].ask("set", cls, name, value)

    def __iter__(cls) -> Any:
        return iter(state(cls)[0].ask("iter", cls))

    def __getitem__(cls, key: Any) -> Any:
        return state(cls)[0].ask("item", cls, key)

    def __len__(cls) -> int:
        return int(state(cls)[0].ask("len", cls))

    def __contains__(cls, item: Any) -> bool:
        return any(item is one or item == one for one in cls)

    def __bool__(cls) -> bool:
        return True


class Proxy:
    """The base class of proxy classes: forwards what is done to an object."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        return state(self)[0].ask("attribute", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            object.__setattr__(self, name, value)
        else:
            state(self)[0].ask("set", self, name, value)

    def __delattr__(self, name: str) -> None:
        state(self)[0].ask("delete", self, name)

    def __copy__(self) -> Any:
        return state(self)[0].ask("copy", self)

    def __deepcopy__(self, memo: Any) -> Any:
        return state(self)[0].ask("deepcopy", self)

    def __dir__(self) -> Any:
        return state(self)[0].ask("dir", self)


def state(thing: Any) -> tuple[Peer, int, bool]:
    """A proxy's peer, its object's number there, and whether the tests created that object."""
    get = type.__getattribute__ if isinstance(thing, ProxyClass) else object.__getattribute__
    found: tuple[Peer, int, bool] = get(thing, _STATE)
    return found


def is_proxy(value: Any) -> bool:
    """Whether it is a proxy for an object or a class of the other side."""
    return isinstance(type(value), ProxyClass) or (isinstance(value, ProxyClass) and _STATE in vars(value))


def mark_as_made_by_tests(thing: Any) -> None:
    peer, number, _ = state(thing)
    object.__setattr__(thing, _STATE, (peer, number, True))


def make_class(
    peer: Peer, number: int, name: str, bases: list[type], special: list[str], like: type | None
) -> ProxyClass:
    """Create the proxy class for a class of the peer. `like` is its nearest base class that both sides have."""
    kept = [
        base for base in bases if isinstance(base, ProxyClass) or issubclass(base, BaseException) or base in VALUE_TYPES
    ]
    base_type = next((base for base in VALUE_TYPES if like and issubclass(like, base)), None)
    if base_type and not any(issubclass(base, base_type) for base in kept):
        kept = [base_type]
    namespace = _namespace(special, base_type, like)
    has_proxy_base = any(isinstance(base, ProxyClass) for base in kept)
    try:
        made = type.__new__(ProxyClass, name, (*kept,) if has_proxy_base else (Proxy, *kept), namespace)
    except TypeError:  # base classes that cannot be combined here
        made = type.__new__(ProxyClass, name, (Proxy,), namespace)
    type.__setattr__(made, _STATE, (peer, number, False))
    return made


def make_object(kind: ProxyClass, peer: Peer, number: int, value: Any) -> Any:
    """Create the proxy for an object of the peer. `value` is its value as an instance of its immutable base type, or
    its arguments if it is an exception."""
    made: Any
    if issubclass(kind, BaseException):
        made = kind.__new__(kind, *value)
        made.args = tuple(value)
    elif base_type := next((base for base in VALUE_TYPES if issubclass(kind, base)), None):
        make: Any = base_type.__new__
        made = make(kind, value)
    else:
        made = object.__new__(kind)
    object.__setattr__(made, _STATE, (peer, number, False))
    return made


def _namespace(special: list[str], base_type: type | None, like: type | None) -> dict[str, Any]:
    """The attributes of a proxy class: the special methods, each forwarded, and a few that Python itself looks for."""
    namespace: dict[str, Any] = {"__doc__": property(lambda self: state(self)[0].ask("attribute", self, "__doc__"))}
    if base_type is None:
        namespace["__dict__"] = property(lambda self: state(self)[0].ask("attribute", self, "__dict__"))
        if like is not None and not issubclass(like, BaseException):
            namespace["__class__"] = property(lambda self: like)
    collection = next((kind for kind in COLLECTIONS if like and issubclass(like, kind)), None)
    for name in special:
        if name == "__call__":
            namespace[name] = _call
        elif name in FORWARDED:
            namespace[name] = _forward(name)
        elif name in COMPARISONS or name in OPERATORS:
            namespace[name] = _operator(name, base_type, collection)
    if "__await__" in special:
        namespace["__await__"] = lambda self: run_remotely(self).__await__()
    if "__eq__" in namespace and "__hash__" not in special:
        namespace["__hash__"] = None
    elif "__hash__" in namespace and base_type is not None:
        namespace["__hash__"] = base_type.__hash__
    return namespace


def _call(self: Any, *args: Any, **named: Any) -> Any:
    return state(self)[0].ask("call", self, *args, **named)


def _forward(name: str) -> Callable[..., Any]:
    def ask(self: Any, *operands: Any) -> Any:
        return state(self)[0].ask("special", self, name, *operands)

    return ask


def _operator(name: str, base_type: type | None, collection: type | None) -> Callable[..., Any]:
    """An operator that is forwarded only where the program may see its operands."""

    def operate(self: Any, *operands: Any) -> Any:
        peer, _, made_by_tests = state(self)
        if made_by_tests or not peer.untrusted or all(map(is_proxy, operands)):
            result = peer.ask("special", self, name, *operands)
            if made_by_tests and type(result) is type(self):
                mark_as_made_by_tests(result)
            return result
        if base_type is not None:
            return getattr(base_type, name)(self, *operands)
        if collection is not None:
            return getattr(collection, name, _undefined)(peer.ask("contents", self), *operands)
        if name == "__contains__":
            return any(item is operands[0] or item == operands[0] for item in self)
        return NotImplemented

    return operate


def _undefined(*_: Any) -> Any:
    return NotImplemented


async def run_remotely(thing: Any) -> Any:
    """Start a coroutine of the peer, let others start too, and wait for its result."""
    from asyncio import sleep

    peer = state(thing)[0]
    peer.ask("start", thing)
    await sleep(0)
    return peer.ask("finish", thing)
