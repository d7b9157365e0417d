"""`freerun export`: a checkpoint as an ordinary Hugging Face folder."""

from pathlib import Path

from freerun.core import ConfigError
from freerun.launch.resume import load_run, newest_checkpoint
from freerun.observe.folder import RunFolder
from freerun.train.shelf import version_of


def export(source: Path, out: Path) -> Path:
    """`source` is a checkpoint, or a run's folder, and then its newest one. Says which it was.

    The learner that would go on from it writes it, so what is exported is what the run itself would have saved.
    """
    folder = RunFolder(source if version_of(source) is None else source.resolve().parent.parent)
    config, _ = load_run(folder)
    checkpoint = newest_checkpoint(folder) if version_of(source) is None else source
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is not empty: name a new folder")

    from freerun.train.checkpoint import load_checkpoint
    from freerun.train.learner import Learner

    model = Path(config.model.path)
    learner = Learner.from_folder(model, config.train, config.rollout.temperature, config.seed)
    load_checkpoint(checkpoint, learner)
    learner.save(out, like=model)
    return checkpoint
