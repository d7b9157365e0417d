"""`freerun why`: what holds a run up, and which setting to change, from its files. It may go on, be over, or killed."""

from collections.abc import Iterator
from pathlib import Path

from freerun.core import ConfigError
from freerun.observe.folder import RunFolder
from freerun.observe.status import RunPhase
from freerun.observe.view import RunView


def explain_run(folder: Path, steps: int | None) -> Iterator[str]:
    """Lines to print: of the last `steps`, or of all but the first."""
    run = RunFolder(folder)
    if not (run.config.is_file() or run.metrics.is_file()):
        raise ConfigError(f"{folder} is not a run's folder: it has no config.yaml")
    view = RunView(run)
    overview = view.overview()
    said = f": {overview['said']}" if overview["said"] else ""
    yield f"{run.name}, {overview['state']}{said}"
    if overview["supervised"]:
        yield "Supervised training: nobody but the trainer works, and engines where a version is evaluated."
        return
    found = view.why(steps)
    yield from found.lines
    if not found.figures:
        yield "No training step is complete, so nothing can be said of shares of time."
        yield from overview["last_seen"]
    elif not view.columns.family("trainer_waits/"):
        yield "The run is older than figures of who waits for what: only how long is known."
    if overview["state"] in (RunPhase.RUNNING, RunPhase.STARTING, RunPhase.LOST):
        when = "last heard" if overview["state"] is RunPhase.LOST else "now"
        yield from (f"{when}: {one['process']}: {one['what']}" for one in overview["doing"] if one["what"] != "idle")
