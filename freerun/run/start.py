"""Where a run begins: in a new folder at version 0, or in an earlier run's folder at a checkpoint."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from freerun.config.paths import with_whole_paths
from freerun.config.text import dump
from freerun.core.files import write_atomically
from freerun.core.state import RunState
from freerun.machine.machines import Machine
from freerun.observe.folder import RunFolder, keep_lines, writing
from freerun.observe.status import write_starting
from freerun.run.prepare import Prepared
from freerun.train.checkpoint_folder import MACHINES, CheckpointFolder, Kept


@dataclass(frozen=True)
class Start:
    folder: RunFolder
    state: RunState = field(default_factory=RunState)
    checkpoint: Path | None = None
    """What the trainer loads; a new run begins with the model."""
    damaged: dict[Path, str] = field(default_factory=dict)
    """Newer checkpoints that cannot be read, and why."""

    @property
    def notes(self) -> list[str]:
        aside = "it is kept aside, for you to look at or delete"
        damaged = [f"{path.name} is damaged ({why}): {aside}" for path, why in self.damaged.items()]
        return damaged + ([f"goes on from {self.checkpoint}"] if self.checkpoint else [])

    def placed(self, machines: list[Machine]) -> list[Machine]:
        """The same machines, in an order in which the trainer has those that keep the checkpoint, where not all see it:
        it is placed on the last ones."""
        if self.checkpoint is None or not (self.checkpoint / MACHINES).is_file():
            return machines
        kept = Kept.read(self.checkpoint).machines
        return sorted(machines, key=lambda machine: kept.index(machine.name) if machine.name in kept else -1)

    @contextmanager
    def opened(self) -> Iterator[RunFolder]:
        """The folder, locked for us, as it was when the checkpoint was made.

        Lines about later steps go, for those steps are done again; so do half-written checkpoints, and what run.db
        has of those steps, when it is opened. The timeline keeps what happened. The configuration is still the old one:
        see `begun`.
        """
        with self.folder.locked():
            checkpoint_folder = CheckpointFolder(self.folder.checkpoints)
            for path in self.damaged:
                checkpoint_folder.put_aside(path)
            checkpoint_folder.remove_unfinished()
            for file in (self.folder.metrics, self.folder.evals):
                keep_lines(file, lambda line: (line.get("step") or 0) <= self.state.version)
            yield self.folder

    def begun(self, prepared: Prepared) -> None:
        """The checkpoint is loaded and every process is up: from now on the run has this configuration. A resume that
        fails earlier leaves the previous one, with which the run can still be resumed."""
        if self.checkpoint:
            write_config(self.folder, prepared)


def create_folder(prepared: Prepared) -> RunFolder:
    folder = RunFolder.create(Path(prepared.config.runs), prepared.config.name)
    write_config(folder, prepared)
    write_starting(folder)
    return folder


def write_config(folder: RunFolder, prepared: Prepared) -> None:
    """A run without this file cannot be resumed, so it is never half written."""
    with writing(folder.config):
        write_atomically(folder.config, dump(with_whole_paths(prepared.config), prepared.origins))
