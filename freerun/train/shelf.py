"""The folder of a run's checkpoints: which are whole, and how one becomes whole. Knows nothing of what is in them.

A checkpoint is written as `step-12.unfinished` and renamed `step-12` when every byte of it is on the disk, so whatever
bears the name without the ending is whole, whoever was killed when. Older ones go only after that. No torch.
"""

import os
import re
import shutil
from pathlib import Path

from freerun.core import Version

CONTROL = "control.json"
"""The controller's own state, inside each checkpoint."""
_UNFINISHED = ".unfinished"
_NAME = re.compile(r"step-(\d+)")


class Shelf:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def whole(self) -> dict[Version, Path]:
        """Every whole checkpoint by its version, oldest first."""
        found = {v: path for path in self._entries() if (v := version_of(path)) is not None}
        return dict(sorted(found.items()))

    def begin(self, version: Version) -> Path:
        """An empty folder to write that version into."""
        unfinished = self._folder / f"step-{version}{_UNFINISHED}"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        return unfinished

    def complete(self, version: Version, keep: int) -> None:
        """What was written is whole: it takes its place, and all but the newest `keep` go."""
        unfinished = self._folder / f"step-{version}{_UNFINISHED}"
        for path in [*unfinished.rglob("*"), unfinished]:
            _to_disk(path)
        unfinished.rename(self._folder / f"step-{version}")
        _to_disk(self._folder)
        for path in list(self.whole().values())[:-keep]:
            shutil.rmtree(path)

    def tidy(self) -> None:
        """Remove what was never finished. Only while nobody writes."""
        for path in self._entries():
            if path.name.endswith(_UNFINISHED):
                shutil.rmtree(path)

    def _entries(self) -> list[Path]:
        return sorted(self._folder.iterdir()) if self._folder.is_dir() else []


def version_of(checkpoint: Path) -> Version | None:
    """The version of a whole checkpoint by its name; None for any other path."""
    name = _NAME.fullmatch(checkpoint.name)
    return int(name[1]) if name and (checkpoint / CONTROL).is_file() else None


def _to_disk(path: Path) -> None:
    """Files and folders alike: a new name is safe when its folder is."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
