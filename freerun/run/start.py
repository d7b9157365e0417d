"""Where a run begins: in a new folder at version 0, or in an earlier run's folder at a checkpoint."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

from freerun.config.paths import with_whole_paths
from freerun.config.text import dump
from freerun.core import FreerunError, Version
from freerun.core.files import write_atomically
from freerun.core.state import RunState
from freerun.core.text import counted
from freerun.machine.machines import Machine
from freerun.observe.folder import RunFolder, keep_lines, writing
from freerun.observe.status import write_starting
from freerun.run.prepare import Prepared
from freerun.run.recovered import ReadyGroup
from freerun.train.checkpoint_folder import MACHINES, CheckpointFolder, Kept, version_of


@dataclass(frozen=True)
class Start:
    folder: RunFolder
    state: RunState = field(default_factory=RunState)
    checkpoint: Path | None = None
    """What the trainer loads; a new run begins with the model."""
    damaged: dict[Path, str] = field(default_factory=dict)
    """Newer checkpoints that cannot be read, and why."""
    goes_on: bool = False
    """Whether the folder is an earlier run's."""
    ready: tuple[ReadyGroup, ...] = ()
    """Judged groups that the earlier run has left, by its book."""
    used: frozenset[int] = frozenset()
    """Ids of its groups that are not to be given again."""
    after: int = 0
    """The last event of its book that counts."""
    _has_begun: Event = field(default_factory=Event, compare=False, repr=False)

    @property
    def notes(self) -> list[str]:
        aside = "it is kept aside, for you to look at or delete"
        damaged = [f"{path.name} is damaged ({why}): {aside}" for path, why in self.damaged.items()]
        return damaged + ([self._goes_on_from] if self.goes_on else [])

    @property
    def _goes_on_from(self) -> str:
        from_there = f"goes on from {self.checkpoint or 'its beginning, for it has no checkpoint'}"
        again = self.state.version - self.begins
        steps = f"; {counted(again, 'step')} after it {'is' if again == 1 else 'are'} done again from kept answers"
        waiting = f"; {counted(len(self.ready), 'group')} that waited for the trainer still wait"
        return from_there + (steps if again else "") + (waiting if self.ready else "")

    @property
    def redone(self) -> RunState | None:
        """The state that is reached by doing steps again, as a checkpoint would have it; None without such steps."""
        if self.begins == self.state.version:
            return None
        return replace(self.state, owed=[*(place for place, _ in self.ready), *self.state.owed])

    @property
    def begins(self) -> Version:
        """The version that the trainer begins with: the checkpoint's. It does the steps from there to `state` again."""
        return version_of(self.checkpoint) or 0 if self.checkpoint else 0

    def placed(self, machines: list[Machine]) -> list[Machine]:
        """The same machines, in an order in which the trainer has those that keep the checkpoint, where not all see it:
        it is placed on the last ones."""
        if self.checkpoint is None or not (self.checkpoint / MACHINES).is_file():
            return machines
        kept = Kept.read(self.checkpoint).machines
        return sorted(machines, key=lambda machine: kept.index(machine.name) if machine.name in kept else -1)

    @property
    def may_write(self) -> bool:
        """Whether files of the folder may be changed: a new run's at once, an earlier run's when it has `begun`."""
        return not self.goes_on or self._has_begun.is_set()

    @contextmanager
    def opened(self) -> Iterator[RunFolder]:
        """The folder, locked for us. An earlier run's stays as it is until it has `begun`: a resume that fails before
        that adds to its logs, and changes nothing else. Whoever watches sees in status.json that it is starting."""
        with self.folder.locked():
            self.folder.refuse_unwritable()
            before = self.folder.status.read_bytes() if self.folder.status.is_file() else None
            try:
                yield self.folder
            finally:
                if not self.may_write:
                    with suppress(OSError):
                        _put_back(self.folder.status, before)

    def begun(self, prepared: Prepared) -> None:
        """The checkpoint is loaded and every process is up: from now on the folder is as it was when the checkpoint was
        made, and the run has this configuration.

        Half-written checkpoints go, first, for they may be what fills the disk; so do lines about later steps, which
        are done again, and what run.db has of them, when it is opened. The timeline keeps what happened.
        """
        if self.may_write:
            return
        checkpoint_folder = CheckpointFolder(self.folder.checkpoints)
        with writing(self.folder.checkpoints):
            checkpoint_folder.remove_unfinished()
        for file in (self.folder.metrics, self.folder.evals):
            keep_lines(file, lambda line: (line.get("step") or 0) <= self.state.version)
        write_config(self.folder, prepared)
        with writing(self.folder.checkpoints):
            for path in self.damaged:
                checkpoint_folder.put_aside(path)
        self._has_begun.set()


def create_folder(prepared: Prepared) -> RunFolder:
    folder = RunFolder.create(Path(prepared.config.runs), prepared.config.name)
    try:
        write_config(folder, prepared)
    except FreerunError:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    write_starting(folder)
    return folder


def write_config(folder: RunFolder, prepared: Prepared) -> None:
    """A run without this file cannot be resumed, so it is never half written."""
    with writing(folder.config):
        write_atomically(folder.config, dump(with_whole_paths(prepared.config), prepared.origins))


def _put_back(file: Path, content: bytes | None) -> None:
    if content is None:
        file.unlink(missing_ok=True)
    else:
        write_atomically(file, content)
