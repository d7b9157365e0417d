"""The folder of a run's checkpoints: which are complete, and how one is completed. Knows nothing of what is in them.

A checkpoint is written as `step-12.unfinished` and renamed `step-12` when every byte of it is on the disk, so whatever
bears the name without the ending was complete, whoever was killed when. Older ones are deleted only after that. What a
disk does to it later is told by its checksums; a damaged one can be put aside as `step-12.damaged`. No torch.
"""

import re
import shutil
from pathlib import Path

import msgspec

from freerun.core import Version
from freerun.core.files import UNFINISHED, begin_folder, complete_folder, unfinished_of
from freerun.train.checksums import CHECKSUMS, what_is_damaged, write_checksums

CONTROL = "control.json"
"""The controller's own state, inside each checkpoint."""
TENSORS = ".metadata"
"""Which tensors there are and where, by torch's distributed checkpointing: written after them."""
MACHINES = "machines.json"
"""Who has which part, where each machine keeps its own (`apart.py`), or the trainer's machine all of it."""
_DAMAGED = ".damaged"
_NAME = re.compile(r"step-(\d+)")


class Kept(msgspec.Struct, frozen=True):
    """What `machines.json` says: who has a checkpoint, or its parts, where this folder has not all of it."""

    machines: list[str]
    """Each rank's."""
    sharing: int
    """How many ranks shared one copy of the weights."""

    @classmethod
    def read(cls, checkpoint: Path) -> "Kept":
        return msgspec.json.decode((checkpoint / MACHINES).read_bytes(), type=cls)

    def write(self, folder: Path) -> None:
        (folder / MACHINES).write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")

    @property
    def where(self) -> str:
        ranks = {machine: [r for r, at in enumerate(self.machines) if at == machine] for machine in self.machines}
        return ", ".join(f"{machine} has rank {' and '.join(map(str, mine))}" for machine, mine in ranks.items())


class CheckpointFolder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def finished(self) -> dict[Version, Path]:
        """Every complete checkpoint by its version, oldest first."""
        found = {v: path for path in self._entries() if (v := version_of(path)) is not None}
        return dict(sorted(found.items()))

    def begin(self, version: Version) -> Path:
        """An empty folder to write that version into."""
        return begin_folder(self._path(version))

    def unfinished(self, version: Version) -> Path:
        """Where `begin` made it."""
        return unfinished_of(self._path(version))

    def complete(self, version: Version, keep: int) -> None:
        """All is written: the checkpoint takes its place, and all but the newest `keep` go."""
        write_checksums(self.unfinished(version))
        complete_folder(self._path(version), durable=True)
        for path in list(self.finished().values())[:-keep]:
            shutil.rmtree(path)

    def put_aside(self, checkpoint: Path) -> None:
        """It is damaged: its name is free again for the same version, and somebody may still make something of it."""
        aside = self._folder / f"{checkpoint.name}{_DAMAGED}"
        shutil.rmtree(aside, ignore_errors=True)
        checkpoint.rename(aside)

    def remove_unfinished(self) -> None:
        """Only while no trainer writes."""
        for path in self._entries():
            if path.name.endswith(UNFINISHED):
                shutil.rmtree(path)

    def _path(self, version: Version) -> Path:
        return self._folder / f"step-{version}"

    def _entries(self) -> list[Path]:
        return sorted(self._folder.iterdir()) if self._folder.is_dir() else []


def version_of(checkpoint: Path) -> Version | None:
    """The version of a checkpoint by its name, be it damaged; None for any other path."""
    name = _NAME.fullmatch(checkpoint.name)
    known = name and any((checkpoint / file).is_file() for file in (CONTROL, CHECKSUMS, TENSORS))
    return int(name[1]) if name and known else None


def damage(checkpoint: Path) -> str | None:
    """What is wrong with it, in a few words; None if nothing is known to be."""
    tensors = MACHINES if (checkpoint / MACHINES).is_file() else TENSORS
    missing = [file for file in (CONTROL, tensors) if not (checkpoint / file).is_file()]
    return f"{missing[0]} is missing" if missing else what_is_damaged(checkpoint)
