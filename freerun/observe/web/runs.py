"""The runs of a folder, each read when somebody looks at it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from freerun.core import ConfigError, DataError
from freerun.observe.folder import RunFolder
from freerun.observe.view import RunView

KEPT_VIEWS = 64
"""Runs whose figures are kept in memory; those looked at longest ago are read again when asked for."""


class Runs:
    """Finds runs by name. Several threads may ask: each run is read by one at a time."""

    def __init__(self, root: Path) -> None:
        """`root` holds the folders of runs, or is a run's folder itself."""
        if not root.is_dir():
            raise ConfigError(f"{root} is not a folder: name the one that holds your runs, or a run's")
        self.only = root.resolve().name if _is_run(root) else None
        self.root = root.resolve().parent if self.only else root
        self._views: dict[str, tuple[RunView, threading.Lock]] = {}
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """Those that were written to last come first."""
        if self.only:
            return [self.only]
        try:
            found = [path for path in self.root.iterdir() if _is_run(path)]
            return [path.name for path in sorted(found, key=_newest, reverse=True)]
        except OSError:  # deleted while we look
            return []

    @contextmanager
    def view(self, name: str) -> Iterator[RunView]:
        """A run to ask, by nobody else meanwhile. DataError if there is none of that name."""
        if (name not in self._views and (self.only or name) != name) or not self._there(name):
            raise DataError(f"there is no run {name!r:.100} in {self.root}")
        with self._lock:
            known = self._views.pop(name) if name in self._views else None
            view, lock = known or (RunView(RunFolder(self.root / name)), threading.Lock())
            self._views[name] = view, lock
            while len(self._views) > KEPT_VIEWS:
                self._views.pop(next(iter(self._views)))
        with lock:
            yield view

    def _there(self, name: str) -> bool:
        """A run of ours: one in the folder, or one that was there and that somebody still looks at."""
        plain = name not in ("", ".", "..") and Path(name).name == name
        return name in self._views or (plain and _is_run(self.root / name))


def _is_run(path: Path) -> bool:
    return any((path / file).is_file() for file in ("config.yaml", "metrics.jsonl", "status.json"))


def _newest(path: Path) -> float:
    for file in ("metrics.jsonl", "config.yaml"):
        try:
            return (path / file).stat().st_mtime
        except OSError:
            continue
    return 0.0
