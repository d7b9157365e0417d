"""pytest's own fixtures that are supported: capsys, monkeypatch and tmp_path.

The program is another process. What it prints arrives in the tests' `sys.stdout` as long as that is replaced, which
`capsys` does (`program_link.py`). `monkeypatch` changes modules, environment variables and the current folder in both
processes. Both have the same `/tmp`.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

from freerun.sandbox.inside.program_link import ProgramLink
from freerun.sandbox.inside.pytest_subset import Fixture
from freerun.sandbox.inside.source import set_variable

_MISSING = object()


def built_in_fixtures(program: ProgramLink) -> dict[str, Fixture]:
    return {
        "capsys": Fixture(_capsys),
        "monkeypatch": Fixture(lambda: _monkeypatch(program)),
        "tmp_path": Fixture(_tmp_path),
    }


class CaptureResult(NamedTuple):
    out: str
    err: str


class CaptureFixture:
    def __init__(self) -> None:
        self._streams = (io.StringIO(), io.StringIO())
        self._before = (sys.stdout, sys.stderr)

    def start(self) -> None:
        sys.stdout, sys.stderr = self._streams

    def stop(self) -> None:
        sys.stdout, sys.stderr = self._before

    def readouterr(self) -> CaptureResult:
        """What was printed since the last call."""
        texts = [stream.getvalue() for stream in self._streams]
        for stream in self._streams:
            stream.seek(0)
            stream.truncate()
        return CaptureResult(*texts)

    @contextmanager
    def disabled(self) -> Iterator[None]:
        self.stop()
        try:
            yield
        finally:
            self.start()


def _capsys() -> Iterator[CaptureFixture]:
    capture = CaptureFixture()
    capture.start()
    yield capture
    capture.stop()


def _tmp_path() -> Any:
    from pathlib import Path
    from tempfile import mkdtemp

    return Path(mkdtemp(prefix="pytest-", dir="/tmp"))


def _monkeypatch(program: ProgramLink) -> Iterator["MonkeyPatch"]:
    patch = MonkeyPatch(program)
    yield patch
    patch.undo()


class MonkeyPatch:
    def __init__(self, program: ProgramLink) -> None:
        self._program = program
        self._undo: list[Any] = []

    def setattr(self, target: Any, name: Any, value: Any = _MISSING, raising: bool = True) -> None:
        """`setattr(target, "name", value)` or `setattr("module.name", value)`."""
        if value is _MISSING:
            (target, name), value = _find(target), name
        before = getattr(target, name, _MISSING)
        if raising and before is _MISSING:
            raise AttributeError(f"{target!r} has no attribute {name!r}")
        self._undo.append(lambda: self._restore(target, name, before))
        self._set(target, name, value)

    def delattr(self, target: Any, name: Any = _MISSING, raising: bool = True) -> None:
        if name is _MISSING:
            target, name = _find(target)
        before = getattr(target, name, _MISSING)
        if before is not _MISSING:
            self._undo.append(lambda: self._restore(target, name, before))
            self._delete(target, name)
        elif raising:
            raise AttributeError(name)

    def setitem(self, mapping: Any, key: Any, value: Any) -> None:
        before = mapping.get(key, _MISSING)
        self._undo.append(lambda: mapping.pop(key, None) if before is _MISSING else mapping.update({key: before}))
        mapping[key] = value

    def delitem(self, mapping: Any, key: Any, raising: bool = True) -> None:
        if key in mapping:
            before = mapping.pop(key)
            self._undo.append(lambda: mapping.update({key: before}))
        elif raising:
            raise KeyError(key)

    def setenv(self, name: str, value: str, prepend: str | None = None) -> None:
        before = os.environ.get(name)
        self._undo.append(lambda: self._set_variable(name, before))
        self._set_variable(name, f"{value}{prepend}{before}" if prepend and before else str(value))

    def delenv(self, name: str, raising: bool = True) -> None:
        before = os.environ.get(name)
        if before is None and raising:
            raise KeyError(name)
        self._undo.append(lambda: self._set_variable(name, before))
        self._set_variable(name, None)

    def chdir(self, path: Any) -> None:
        before = os.getcwd()
        self._undo.append(lambda: self._change_folder(before))
        self._change_folder(str(path))

    def syspath_prepend(self, path: Any) -> None:
        before = list(sys.path)
        self._undo.append(lambda: setattr(sys, "path", before))
        sys.path.insert(0, str(path))

    @contextmanager
    def context(self) -> Iterator["MonkeyPatch"]:
        yield from _monkeypatch(self._program)

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _set(self, target: Any, name: str, value: Any) -> None:
        setattr(target, name, value)
        if _is_standard(target):
            self._program.ask("patch", target.__name__, name, value)

    def _delete(self, target: Any, name: str) -> None:
        delattr(target, name)
        if _is_standard(target):
            self._program.ask("unpatch", target.__name__, name)

    def _restore(self, target: Any, name: str, before: Any) -> None:
        if before is _MISSING:
            self._delete(target, name)
        else:
            self._set(target, name, before)

    def _set_variable(self, name: str, value: str | None) -> None:
        set_variable(name, value)
        self._program.ask("environ", name, value)

    def _change_folder(self, path: str) -> None:
        os.chdir(path)
        self._program.ask("chdir", path)


def _is_standard(target: Any) -> bool:
    """Whether it is a module of the standard library, of which the program has its own."""
    return isinstance(target, ModuleType) and target.__name__.partition(".")[0] in sys.stdlib_module_names


def _find(path: str) -> tuple[Any, str]:
    """The object and the name of `module.attribute.name`."""
    parent, _, name = path.rpartition(".")
    try:
        return import_module(parent), name
    except ModuleNotFoundError:
        if "." not in parent:
            raise
        owner, attribute = _find(parent)
        return getattr(owner, attribute), name
