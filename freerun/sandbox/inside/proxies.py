"""What stands for an object of the other process: `Proxy`, and for a class of it: a class made by `Mirror`.

A class over there is a class here, so that `isinstance`, `except` and `type(x) is C` mean what they say; an object
over there is an instance of it, whose attributes, methods and operators are asked for. A class that derives from
a number, a text or a tuple (an IntEnum, a named tuple) is one here too, and is compared as such.

Between a program and its tests, an operator is asked for only where that shows the program nothing it should find out
for itself: on two of its own objects, and on what the tests have made of its classes (`Vector(1, 2) * 3`). A result of
some class that the tests did not call cannot say what it equals.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

COMPARING = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lshift", "rshift", "and", "or")
CALCULATING = (
    "__contains__",
    *(f"__{side}{name}__" for name in (*_ARITHMETIC, "xor", "divmod") for side in ("", "r")),
    *(f"__i{name}__" for name in (*_ARITHMETIC, "xor")),
)
ASKING = (
    *("__len__", "__bool__", "__iter__", "__next__", "__reversed__", "__getitem__", "__setitem__", "__delitem__"),
    *("__call__", "__enter__", "__exit__", "__str__", "__repr__", "__format__", "__bytes__", "__hash__", "__int__"),
    *("__float__", "__complex__", "__index__", "__round__", "__trunc__", "__floor__", "__ceil__", "__neg__", "__pos__"),
    *("__abs__", "__invert__", "__fspath__", "__aiter__", "__anext__", "__aenter__", "__aexit__", "__length_hint__"),
)
SPECIAL = frozenset((*COMPARING, *CALCULATING, *ASKING, "__await__"))
"""The methods that Python looks for in a class and not in an object."""
BASES: tuple[type, ...] = (int, float, str, bytes, tuple, frozenset, complex)
"""What a class may derive from and still be one here: nothing in them can change."""
COLLECTIONS: tuple[type, ...] = (list, dict, set, deque, bytearray)

_STATE = "_freerun"


class Peer(Protocol):
    """The other process."""

    guarded: bool
    """It may not be shown what it is compared with."""

    def ask(self, what: str, *operands: Any, **named: Any) -> Any: ...


class Mirror(type):
    """Stands for a class of the other process. `state`: the peer, its number, and whether the tests made it."""

    def __call__(cls, *args: Any, **named: Any) -> Any:
        made = state(cls)[0].ask("call", cls, *args, **named)
        if type(made) is cls:
            own(made)
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
    """An object over there."""

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
    get = type.__getattribute__ if isinstance(thing, Mirror) else object.__getattribute__
    found: tuple[Peer, int, bool] = get(thing, _STATE)
    return found


def is_mirrored(value: Any) -> bool:
    """Whether it stands for something of the other side's."""
    return isinstance(type(value), Mirror) or (isinstance(value, Mirror) and _STATE in vars(value))


def own(thing: Any) -> None:
    peer, number, _ = state(thing)
    object.__setattr__(thing, _STATE, (peer, number, True))


def make_class(peer: Peer, number: int, name: str, bases: list[type], special: list[str], like: type | None) -> Mirror:
    """The class that stands for one over there. `like` is the nearest class of Python's own that it derives from."""
    kept = [base for base in bases if isinstance(base, Mirror) or issubclass(base, BaseException) or base in BASES]
    solid = next((base for base in BASES if like and issubclass(like, base)), None)
    if solid and not any(issubclass(base, solid) for base in kept):
        kept = [solid]
    space = _space(special, solid, like)
    try:
        made = type.__new__(Mirror, name, (*kept,) if any(map(_stands, kept)) else (Proxy, *kept), space)
    except TypeError:  # bases that cannot be put together here
        made = type.__new__(Mirror, name, (Proxy,), space)
    type.__setattr__(made, _STATE, (peer, number, False))
    return made


def _stands(base: type) -> bool:
    return isinstance(base, Mirror)


def make_object(kind: Mirror, peer: Peer, number: int, value: Any) -> Any:
    """`value`: of one that derives from a plain type or an exception, what it is as such."""
    made: Any
    if issubclass(kind, BaseException):
        made = kind.__new__(kind, *value)
        made.args = tuple(value)
    elif solid := next((base for base in BASES if issubclass(kind, base)), None):
        make: Any = solid.__new__
        made = make(kind, value)
    else:
        made = object.__new__(kind)
    object.__setattr__(made, _STATE, (peer, number, False))
    return made


def _space(special: list[str], solid: type | None, like: type | None) -> dict[str, Any]:
    space: dict[str, Any] = {"__doc__": property(lambda self: state(self)[0].ask("attribute", self, "__doc__"))}
    if solid is None:
        space["__dict__"] = property(lambda self: state(self)[0].ask("attribute", self, "__dict__"))
        if like is not None and not issubclass(like, BaseException):
            space["__class__"] = property(lambda self: like)
    collection = next((kind for kind in COLLECTIONS if like and issubclass(like, kind)), None)
    for name in special:
        if name == "__call__":
            space[name] = _call
        elif name in ASKING:
            space[name] = _asking(name)
        elif name in COMPARING or name in CALCULATING:
            space[name] = _operator(name, solid, collection)
    if "__await__" in special:
        space["__await__"] = lambda self: awaiting(self).__await__()
    if "__eq__" in space and "__hash__" not in special:
        space["__hash__"] = None
    elif "__hash__" in space and solid is not None:
        space["__hash__"] = solid.__hash__
    return space


def _call(self: Any, *args: Any, **named: Any) -> Any:
    return state(self)[0].ask("call", self, *args, **named)


def _asking(name: str) -> Callable[..., Any]:
    def ask(self: Any, *operands: Any) -> Any:
        return state(self)[0].ask("special", self, name, *operands)

    return ask


def _operator(name: str, solid: type | None, collection: type | None) -> Callable[..., Any]:
    def operate(self: Any, *operands: Any) -> Any:
        peer, _, owned = state(self)
        if owned or not peer.guarded or all(map(is_mirrored, operands)):
            result = peer.ask("special", self, name, *operands)
            if owned and type(result) is type(self):
                own(result)
            return result
        if solid is not None:
            return getattr(solid, name)(self, *operands)
        if collection is not None:
            return getattr(collection, name, _undefined)(peer.ask("contents", self), *operands)
        if name == "__contains__":
            return any(item is operands[0] or item == operands[0] for item in self)
        return NotImplemented

    return operate


def _undefined(*_: Any) -> Any:
    return NotImplemented


async def awaiting(thing: Any) -> Any:
    """Start it over there, let others be started too, and wait for it."""
    from asyncio import sleep

    peer = state(thing)[0]
    peer.ask("start", thing)
    await sleep(0)
    return peer.ask("finish", thing)
