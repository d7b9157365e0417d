"""`freerun export`: a checkpoint as an ordinary Hugging Face folder."""

import os
from collections.abc import Callable
from pathlib import Path

from freerun.control.state import read_state
from freerun.core import ConfigError, FreerunError
from freerun.models.hub import find_model
from freerun.models.shape import read_shape
from freerun.models.tokenizer import load_tokenizer
from freerun.models.weight_files import check_weights
from freerun.observe.folder import RunFolder
from freerun.run.identity import identity, refuse_another_model
from freerun.run.resume import Found, load_run, newest_checkpoint
from freerun.train.checkpoint_folder import CONTROL, damage, version_of


def export(source: Path, out: Path, note: Callable[[str], None] = print) -> Path:
    """`source` is a checkpoint, or a run's folder, and then its newest one that can be read. Says which it was.

    The learner that would go on from it writes it, so what is exported is what the run itself would have saved.
    """
    folder = RunFolder(source if version_of(source) is None else source.resolve().parent.parent)
    config, _ = load_run(folder)
    found = newest_checkpoint(folder) if version_of(source) is None else only(source)
    assert found.checkpoint is not None, "newest_checkpoint finds one or fails"
    for path, why in found.damaged.items():
        note(f"{path} is damaged ({why}); {found.checkpoint.name} is the newest that is whole")
    refuse_to_write_over(out)
    model = find_model(config.model.path).folder
    shape = read_shape(model, config.model.code)
    check_weights(model, shape)
    now = identity(config, shape, load_tokenizer(model))
    refuse_another_model(found.checkpoint, found.state.model, now, config.model.path)

    from safetensors import SafetensorError

    from freerun.train.checkpoint import load_checkpoint
    from freerun.train.learner import Learner

    backend = config.model.code
    learner = Learner.from_folder(model, config.train, config.rollout.temperature, config.seed, backend=backend)
    load_checkpoint(found.checkpoint, learner)
    try:
        learner.save(out, like=model)
    except (OSError, SafetensorError) as error:
        cause = getattr(error, "strerror", None) or error
        raise FreerunError(f"{out} cannot be written ({cause}): make room there, or name another folder") from None
    return found.checkpoint


def refuse_to_write_over(out: Path) -> None:
    """Also a place where no folder can be made."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is not empty: name a new folder")
    there = next(parent for parent in (out.absolute(), *out.absolute().parents) if parent.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise ConfigError(f"{out} cannot be made, for {there} is not a folder to write to: name another one")


def only(checkpoint: Path) -> Found:
    """That one, or none."""
    if wrong := damage(checkpoint):
        raise ConfigError(f"{checkpoint} is damaged ({wrong}): export the run's folder for the newest that is whole")
    return Found(checkpoint, read_state(checkpoint / CONTROL), {})
