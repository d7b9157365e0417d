"""`freerun resume`: the folder of an earlier run, checked and made ready to continue from its newest complete
checkpoint, and as far beyond it as its book allows (`recovered.py`); without any checkpoint, from its beginning.

Every mistake that the user can have made is found here, before anything is changed or started. The run keeps its
configuration, save for the overrides, and its data: positions in other data would mean other tasks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from freerun.config.load import load_dumped
from freerun.config.text import Origins
from freerun.config.tree import RunConfig
from freerun.control.state import read_state
from freerun.core import ConfigError, DataError, Version
from freerun.core.state import RunState
from freerun.observe.book_reader import BookReader
from freerun.observe.folder import RunFolder
from freerun.run.identity import refuse_another_model
from freerun.run.prepare import Prepared, prepare, prepare_dpo, prepare_sft
from freerun.run.recovered import learns_alike, recovered
from freerun.run.start import Start
from freerun.train.checkpoint_folder import CONTROL, CheckpointFolder, damage


@dataclass(frozen=True)
class Found:
    """The newest checkpoint that can be read, and the newer ones that cannot, with what is wrong with each."""

    checkpoint: Path | None
    """None: there is none, and the run goes on from its beginning."""
    state: RunState
    damaged: dict[Path, str] = field(default_factory=dict)


def resume(path: Path, overrides: Sequence[str]) -> tuple[Prepared, Start]:
    folder = RunFolder(path)
    if kept := [override for override in overrides if override.startswith(("name=", "runs="))]:
        raise ConfigError(f"{kept[0]}: a run that goes on keeps its folder, {path}; leave that out")
    config, origins = load_run(folder, overrides)
    found = where_to_begin(folder)
    refuse_if_complete(folder, config, found.state)
    how = prepare_dpo if found.state.preferences else prepare_sft if found.state.supervised else prepare
    prepared = how(config, origins)
    _refuse_others(folder, found, prepared)
    return prepared, _started(folder, found, prepared, learns_alike(load_run(folder)[0], config))


def _refuse_others(folder: RunFolder, found: Found, prepared: Prepared) -> None:
    """Another model, or other data."""
    config, there = prepared.config, found.checkpoint or folder.path
    refuse_another_model(there, found.state.model, prepared.identity, config.model.path)
    if (found.checkpoint or found.state.data) and found.state.data != prepared.stream(None).fingerprint:
        raise DataError(
            f"the tasks of {config.data.source}, or their order, have changed since {there} was made: bring them "
            f"back; or take the model as it is (freerun export {folder.path} MODEL), and begin a new run with it"
        )


def again(start: Start, prepared: Prepared) -> Start:
    """Where a run whose trainer was lost goes on."""
    found = where_to_begin(start.folder) if can_go_on(start.folder) else Found(None, RunState())
    return _started(start.folder, found, prepared, unchanged=True)


def _started(folder: RunFolder, found: Found, prepared: Prepared, unchanged: bool) -> Start:
    """As far beyond the checkpoint as the book allows. Supervised training has no book: it samples nothing."""
    if found.state.supervised:
        return Start(folder, found.state, found.checkpoint, found.damaged, goes_on=True)
    stream = prepared.stream(prepared.config.control.epochs)
    config, book = prepared.config, BookReader(folder.samples)
    there = recovered(book, found.state, stream, config.control, config.evaluate.pass_reward, unchanged)
    return Start(folder, there.state, found.checkpoint, found.damaged, True, there.ready, there.used, there.after)


def where_to_begin(folder: RunFolder) -> Found:
    """At the newest checkpoint; at the beginning where there is none, and the book says that the run has begun."""
    if not CheckpointFolder(folder.checkpoints).finished() and _has_book(folder):
        known = list(BookReader(folder.samples).settlements().values())
        return Found(None, RunState(data=known[-1].state.data, model=known[-1].state.model) if known else RunState())
    return newest_checkpoint(folder)


def load_run(folder: RunFolder, overrides: Sequence[str] = ()) -> tuple[RunConfig, Origins]:
    """The configuration of a run, with where each value came from in the first place, and the overrides."""
    if not folder.config.is_file():
        inside = [parent for parent in folder.path.resolve().parents if RunFolder(parent).config.is_file()]
        hint = f"; you may mean {inside[0]}" if inside else ""
        raise ConfigError(f"{folder.path} is not a run's folder: it has no config.yaml{hint}")
    return load_dumped(folder.config, overrides)


def newest_checkpoint(folder: RunFolder) -> Found:
    damaged: dict[Path, str] = {}
    for checkpoint in reversed(CheckpointFolder(folder.checkpoints).finished().values()):
        if wrong := damage(checkpoint):
            damaged[checkpoint] = wrong
            continue
        try:
            return Found(checkpoint, read_state(checkpoint / CONTROL), damaged)
        except ConfigError as error:
            damaged[checkpoint] = str(error)
    if not damaged:
        raise ConfigError(f"{folder.checkpoints} holds no checkpoint: set train.save_every lower before the next run")
    told = "; ".join(f"{path.name}: {why}" for path, why in damaged.items())
    raise ConfigError(f"no checkpoint of {folder.checkpoints} can be read ({told}): begin a new run")


def refuse_if_complete(folder: RunFolder, config: RunConfig, state: RunState) -> None:
    if state.version >= config.control.steps:
        raise ConfigError(f"{folder.path} is complete: {state.version} steps are done; raise control.steps to go on")
    epochs = None if state.supervised else config.control.epochs
    if epochs is not None and state.position.epoch >= epochs and not state.owed:
        raise ConfigError(f"{folder.path} is complete: its data is used up; raise control.epochs to go on")


def can_go_on(folder: RunFolder) -> bool:
    return bool(CheckpointFolder(folder.checkpoints).finished()) or _has_book(folder)


def _has_book(folder: RunFolder) -> bool:
    try:
        return bool(BookReader(folder.samples).beginnings())
    except DataError:
        return False


def newest_step(folder: RunFolder) -> Version:
    """The step of its newest checkpoint; 0 without any."""
    return max(CheckpointFolder(folder.checkpoints).finished(), default=0)


def how_to_go_on(folder: RunFolder) -> str:
    """The line to end with when a run was stopped."""
    if not folder.path.exists():
        return "stopped before the first step: nothing is left of it"
    finished = list(CheckpointFolder(folder.checkpoints).finished())
    if not finished and _has_book(folder):
        return f"stopped; go on with: freerun resume {folder.path}"
    if not finished:
        return f"stopped before a step was saved: what was learned is gone; its figures are in {folder.path}"
    return f"stopped; step {finished[-1]} is saved; go on with: freerun resume {folder.path}"
