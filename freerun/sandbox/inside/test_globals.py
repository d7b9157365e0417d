"""What names mean in tests: `TestGlobals` has their global names, `SolutionModule` is the program as they import it."""

import builtins
import sys
from types import ModuleType
from typing import Any

from freerun.sandbox.inside.program_link import ProgramLink
from freerun.sandbox.inside.proxies import is_proxy
from freerun.sandbox.inside.subclassing import super_of_tests


class TestGlobals(dict[str, Any]):
    """The tests' global names. The tests' own come first, then Python's, then the program's.

    So a program that defines `abs`, `math` or `check` does not change what those mean in a test. `program_names` are
    the exception: they always come from the program.
    """

    def __init__(self, program: ProgramLink, dotted: set[str], program_names: set[str]) -> None:
        """`dotted` are names that the tests use with a dot after them, as they would use a module."""
        super().__init__(__name__="__main__", __builtins__=builtins, __file__="tests.py")
        self._program = program
        self._dotted = dotted
        self._program_names = program_names
        self |= {"__before_statement__": program.apply_pending_changes, "__before_assertion__": self._count_assertion}
        self |= {"__is__": program.is_same, "__on_exit__": _on_exit}

    def __missing__(self, name: str) -> Any:
        if name in self._program_names and (not hasattr(builtins, name) or self._program.ask("has", name)):
            return self._program.ask("name", name)
        if name in _REPLACED_BUILTINS:
            return _REPLACED_BUILTINS[name]
        if hasattr(builtins, name) or name.startswith("__"):
            raise KeyError(name)
        if name in self._dotted and name in sys.stdlib_module_names:
            return __import__(name)  # tests often forget to
        return self._program.ask("name", name)

    def _count_assertion(self) -> None:
        self._program.apply_pending_changes()
        self._program.assertions += 1


class SolutionModule(ModuleType):
    """The module from which tests import the program's functions."""

    def __init__(self, name: str, program: ProgramLink) -> None:
        super().__init__(name)
        self._program = program

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self._program.ask("name", name)
        except NameError as error:
            raise AttributeError(str(error)) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__") or name == "_program":
            super().__setattr__(name, value)
        else:
            self._program.ask("assign", name, value)

    def __delattr__(self, name: str) -> None:
        self._program.ask("unassign", name)


class StrictMap(map):  # type: ignore[type-arg]
    """`map` without two ways for a program to cut it short: a function that raises StopIteration raises RuntimeError,
    and the program's iterators must be as long as what they are compared with."""

    def __new__(cls, function: Any, *iterables: Any) -> Any:
        def call(*args: Any) -> Any:
            try:
                return function(*args)
            except StopIteration as error:
                raise RuntimeError("StopIteration was raised") from error

        if len(iterables) > 1 and any(map(is_proxy, iterables)):
            return super().__new__(cls, lambda args: call(*args), zip(*iterables, strict=True))
        return super().__new__(cls, call, *iterables)


_REPLACED_BUILTINS: dict[str, Any] = {"map": StrictMap, "super": super_of_tests}


def _on_exit(error: SystemExit) -> None:
    """The tests exit: they passed, unless the exit code says otherwise."""
    if error.code:
        raise error
