"""The one resolver: what a user writes in a file to name a judge, a rollout, an objective, a data source, an observer.

    math                     built in, else an entry point that an installed package brings (group `freerun.judges`, …)
    path/to/file.py:name     a file; a relative path starts at the working directory (`config/paths.py` has made those
                             of a run's file whole that lie beside it)
    package.module:name      a module that Python can import, or that lies in the working directory

`find` says where it is, `Found.definition` reads it without running any of it, `Found.load` imports it. Whatever is
wrong is a ConfigError of one line. Knows no kind of thing: each room declares its own `Kind`.
"""

import ast
import importlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from hashlib import blake2b
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from freerun.core.errors import ConfigError, FreerunError
from freerun.core.text import did_you_mean
from freerun.core.traces import describe

IMPORT_PATH = "FREERUN_IMPORT_PATH"
"""The environment variable that tells a process of ours where its parent finds modules."""
_FILE_MODULE = "freerun_file_"
"""How the names of modules begin that were loaded from a user's file."""


_loading: list[Path] = []


def is_loading() -> bool:
    """Whether a user's file is being imported, for something that it defines."""
    return bool(_loading)


class ScriptReached(BaseException):
    """A script that is imported for something it defines has come to its call of `train`: that much is enough."""


@dataclass(frozen=True)
class Kind:
    """Something that users may bring themselves."""

    noun: str
    """For messages: `judge`."""
    form: str
    """What it is in their file: `FUNCTION`, `Class`."""
    group: str
    """The group of entry points."""
    built_in: Mapping[str, str] = field(default_factory=dict)
    """Names of our own, and the `module:name` of each."""

    def find(self, given: str) -> "Found":
        if ":" not in given:
            return self._by_name(given)
        where, _, name = given.rpartition(":")
        dotted = all(part.isidentifier() for part in name.split("."))
        if dotted and where.endswith(".py"):
            return Found(self, given, Path(where).expanduser(), "", name)
        if dotted and all(part.isidentifier() for part in where.split(".")):
            return Found(self, given, None, where, name)
        raise ConfigError(f'the {self.noun} "{given}" must be {self._forms}')

    def knows(self, name: str) -> bool:
        """Whether it is the name of something built in or installed."""
        return name in self.built_in or name in self._brought().names

    def _brought(self) -> EntryPoints:
        """What installed packages bring."""
        _look_where_the_parent_looks()
        return entry_points(group=self.group)

    @property
    def _forms(self) -> str:
        return f"FILE.py:{self.form} or package.module:{self.form}"

    def _by_name(self, name: str) -> "Found":
        if name in self.built_in:
            module, _, attribute = self.built_in[name].partition(":")
            return Found(self, name, None, module, attribute)
        brought = self._brought()
        matching = {entry.value: entry for entry in brought if entry.name == name}
        if len(matching) > 1:
            told = " and ".join(f"{entry.value} ({_package(entry)})" for entry in matching.values())
            raise ConfigError(f'there are several {self.noun}s "{name}": {told}; write which one you mean')
        if not matching:
            known = [*self.built_in, *sorted({entry.name for entry in brought})]
            listed = f"use one of {', '.join(known)}, or" if known else "write"
            raise ConfigError(f'there is no {self.noun} "{name}": {listed} {self._forms}{did_you_mean(name, known)}')
        (entry,) = matching.values()
        return Found(self, name, None, entry.module, entry.attr)


@dataclass(frozen=True)
class Found:
    """Where something of the user's is, if it is there."""

    kind: Kind
    given: str
    """As the user wrote it."""
    file: Path | None
    """The file that it is in, where it was named by a file; else `module` is set."""
    module: str
    name: str

    @property
    def is_built_in(self) -> bool:
        return self.given in self.kind.built_in

    def definition(self) -> tuple[str, ast.AST | None]:
        """The source file, and what binds the name in it; None where only running it would tell. Runs none of it, so
        that a process need not import whatever the user's code imports. Refuses what cannot be."""
        path = self._existing_file() if self.file else self._source_of_module()
        if path is None:
            return self.module, None
        try:
            tree = ast.parse(path.read_bytes(), str(path))
        except (SyntaxError, ValueError) as error:
            line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
            raise ConfigError(f"{path}{line}: not valid Python: {error.args[0]}") from None
        bound = dict(_bound_names(tree))
        first = self.name.partition(".")[0]
        if first not in bound and "*" not in bound and "__getattr__" not in bound:
            raise self._missing(str(path), bound)
        return str(path), bound.get(first) if first == self.name else None

    def load(self) -> Any:
        """Import what it is in, and take it. What the user's code raises while it is imported is a ConfigError, too."""
        try:
            module = self._load_file(self._existing_file()) if self.file else self._load_module()
        except FreerunError:
            raise
        except (Exception, SystemExit) as error:
            raise ConfigError(describe(error)) from error
        try:
            return reduce(getattr, self.name.split("."), module)
        except AttributeError:
            raise self._missing(str(self.file or self.module), vars(module)) from None

    def _missing(self, where: str, known: Iterable[str]) -> ConfigError:
        return ConfigError(f"{where} has no {self.kind.form.lower()} {self.name}{did_you_mean(self.name, known)}")

    def _existing_file(self) -> Path:
        assert self.file is not None
        if not self.file.is_file():
            near = did_you_mean(self.file.name, (entry.name for entry in self.file.parent.glob("*.py")))
            raise ConfigError(f"there is no file {self.file} (from {Path.cwd()}) for the {self._called}{near}")
        return self.file

    @property
    def _called(self) -> str:
        return f"{self.kind.noun} {self.given}"

    def _source_of_module(self) -> Path | None:
        """None for a module that is not a plain file of Python."""
        if _spec_of(self.module) is None:
            raise ConfigError(f"there is no module {self.module} for the {self._called}: install it, or correct it")
        return source_of_module(self.module)

    def _load_module(self) -> ModuleType:
        if _spec_of(self.module) is None:
            self._source_of_module()
        return importlib.import_module(self.module)

    def _load_file(self, path: Path) -> ModuleType:
        """As a program in its own folder would be, once for all that is taken from it, unless it has changed since. The
        script that runs is not run again for what it has defined already."""
        path = path.resolve()
        main = sys.modules["__main__"]
        if _same_file(getattr(main, "__file__", None), path) and self.name.partition(".")[0] in vars(main):
            return main
        name = f"{_FILE_MODULE}{path.stem}_{blake2b(bytes(path) + path.read_bytes(), digest_size=8).hexdigest()}"
        if name in sys.modules:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        if str(path.parent) not in sys.path:
            sys.path.insert(0, str(path.parent))
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses and pickle look a module up by its name
        _loading.append(path)
        try:
            spec.loader.exec_module(module)
        except ScriptReached:
            pass
        except BaseException:
            del sys.modules[name]
            raise
        finally:
            _loading.pop()
        return module


def reference_to(thing: Any) -> str | None:
    """How another process finds this function or class: `module:name`, or `FILE.py:name` for one of the script that
    runs; None for what cannot be found by name, such as a lambda, a closure, or what was typed into a notebook."""
    module, name = sys.modules.get(getattr(thing, "__module__", "")), getattr(thing, "__qualname__", "")
    if module is None or not name or "<" in name:
        return None
    try:
        if reduce(getattr, name.split("."), module) is not thing:
            return None
    except AttributeError:
        return None
    file = getattr(module, "__file__", None)
    if module.__name__ == "__main__" or module.__name__.startswith(_FILE_MODULE):
        return f"{Path(file).resolve()}:{name}" if file and file.endswith(".py") and Path(file).is_file() else None
    return f"{module.__name__}:{name}"


def source_of_module(module: str) -> Path | None:
    """The file that importing it would run; None where there is none, or it is not a plain file of Python."""
    spec = _spec_of(module)
    source = spec and spec.origin and Path(spec.origin)
    return source if source and source.suffix == ".py" and source.is_file() else None


def import_path() -> str:
    """For IMPORT_PATH of a process to start: where this one finds modules."""
    return os.pathsep.join(sys.path)


def _spec_of(module: str) -> importlib.machinery.ModuleSpec | None:
    """Where it is, found without importing the packages that it is in."""
    _look_where_the_parent_looks()
    spec, path = None, None
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        loaded = sys.modules.get(name)
        spec = getattr(loaded, "__spec__", None) or next(
            (found for finder in sys.meta_path if (found := finder.find_spec(name, path, None))), None
        )
        if spec is None:
            return None
        path = spec.submodule_search_locations
    return spec


def _look_where_the_parent_looks() -> None:
    """For modules and packages; and in the working directory."""
    for folder in [*os.environ.get(IMPORT_PATH, "").split(os.pathsep), str(Path.cwd())]:
        if folder and folder not in sys.path:
            sys.path.append(folder)


def _bound_names(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Every name that the module binds at its top level, under an `if` or `try` too, and what binds it."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop(0)
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node
                continue
            case ast.Import() | ast.ImportFrom():
                for alias in node.names:
                    yield (alias.asname or alias.name).partition(".")[0], node
            case ast.Name(ctx=ast.Store()):
                yield node.id, node
        waiting.extend(ast.iter_child_nodes(node))


def _same_file(one: str | None, other: Path) -> bool:
    return one is not None and Path(one).resolve() == other


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else "?"
