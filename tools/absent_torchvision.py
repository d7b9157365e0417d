"""Stands in for torchvision in SGLang's environment on a CPU: no build of it matches that torch.

SGLang imports it for models that see, whichever model it serves. Every module of it can be imported from here, and
every name in them is `Absent`, of which nothing can be made.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__version__ = "0.0"


class _Absent(type):
    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class Absent(metaclass=_Absent):
    def __init__(self, *_: object, **__: object) -> None:
        raise ImportError("torchvision is not installed here: this environment serves models of text alone")


def __getattr__(name: str) -> type:
    return getattr(Absent, name)


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.startswith("torchvision.") else None

    def exec_module(self, module: ModuleType) -> None:
        module.__getattr__ = __getattr__  # type: ignore[method-assign]


sys.meta_path.append(_Finder())
