"""The folder of a run's checkpoints: which are complete, and how one is completed. Knows nothing of what is in them.

A checkpoint is written as `step-12.unfinished` and renamed `step-12` when every byte of it is on the disk, so whatever
bears the name without the ending was complete, whoever was killed when. Older ones are deleted only after that. What a
disk does to it later is told by its checksums; a damaged one can be put aside as `step-12.damaged`. No torch.
"""

import os
import re
import shutil
from pathlib import Path

from freerun.core import Version
from freerun.train.checksums import CHECKSUMS, what_is_damaged, write_checksums

CONTROL = "control.json"
"""The controller's own state, inside each checkpoint."""
TENSORS = ".metadata"
"""Which tensors there are and where, by torch's distributed checkpointing: written after them."""
_UNFINISHED = ".unfinished"
_DAMAGED = ".damaged"
_NAME = re.compile(r"step-(\d+)")


class CheckpointFolder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def finished(self) -> dict[Version, Path]:
        """Every complete checkpoint by its version, oldest first."""
        found = {v: path for path in self._entries() if (v := version_of(path)) is not None}
        return dict(sorted(found.items()))

    def begin(self, version: Version) -> Path:
        """An empty folder to write that version into."""
        unfinished = self._folder / f"step-{version}{_UNFINISHED}"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        return unfinished

    def complete(self, version: Version, keep: int) -> None:
        """All is written: the checkpoint takes its place, and all but the newest `keep` go."""
        unfinished = self._folder / f"step-{version}{_UNFINISHED}"
        write_checksums(unfinished)
        for path in [*unfinished.rglob("*"), unfinished]:
            _to_disk(path)
        unfinished.rename(self._folder / f"step-{version}")
        _to_disk(self._folder)
        for path in list(self.finished().values())[:-keep]:
            shutil.rmtree(path)

    def put_aside(self, checkpoint: Path) -> None:
        """It is damaged: its name is free again for the same version, and somebody may still make something of it."""
        aside = self._folder / f"{checkpoint.name}{_DAMAGED}"
        shutil.rmtree(aside, ignore_errors=True)
        checkpoint.rename(aside)

    def tidy(self) -> None:
        """Remove what was never finished. Only while nobody writes."""
        for path in self._entries():
            if path.name.endswith(_UNFINISHED):
                shutil.rmtree(path)

    def _entries(self) -> list[Path]:
        return sorted(self._folder.iterdir()) if self._folder.is_dir() else []


def version_of(checkpoint: Path) -> Version | None:
    """The version of a checkpoint by its name, be it damaged; None for any other path."""
    name = _NAME.fullmatch(checkpoint.name)
    known = name and any((checkpoint / file).is_file() for file in (CONTROL, CHECKSUMS, TENSORS))
    return int(name[1]) if name and known else None


def damage(checkpoint: Path) -> str | None:
    """What is wrong with it, in a few words; None if nothing is known to be."""
    missing = [file for file in (CONTROL, TENSORS) if not (checkpoint / file).is_file()]
    return f"{missing[0]} is missing" if missing else what_is_damaged(checkpoint)


def _to_disk(path: Path) -> None:
    """Files and folders alike: a new name is safe when its folder is."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
