"""`freerun engines`: which engines a run has, and more or fewer of them while it goes on."""

from pathlib import Path

from freerun.core import ConfigError
from freerun.observe.folder import RunFolder
from freerun.observe.status import RunPhase, RunStatus, read_status
from freerun.run.resume import load_run
from freerun.run.wanted import KEY, WantedEngines, want_engines

_GOES_ON = (RunPhase.STARTING, RunPhase.RUNNING)


def engine_lines(path: Path) -> list[str]:
    """The name of each, its machine, its version, and what it does: in a run that has ended, did last."""
    load_run(RunFolder(path))
    status = read_status(path)
    if status is None or not status.engines:
        raise ConfigError(f"{path} tells of no engines: it has not begun to train, or does so without any")
    doing = {name: now.what for name, now in status.doing.items()}
    return [f"{name} on {machine}: {doing.get(name, 'starts')}" for name, machine in status.engines.items()]


def change_engines(path: Path, change: str, what: str | None) -> str:
    """`add` so many, or `remove` so many or the one of that name; one, unless told otherwise. What comes of it."""
    folder = RunFolder(path)
    config, _ = load_run(folder)
    status = read_status(path)
    there = list(status.engines) if status else []
    now = config.resources.engines or len(there)
    if not now:
        raise ConfigError(f"{path} does not tell how many engines it has: set {KEY} in {folder.config}")
    wanted = _wanted(change, what, now, there)
    want_engines(folder, wanted)
    return f"{KEY} is {wanted.number} now, and was {now}: {_when(status)}"


def _wanted(change: str, what: str | None, now: int, there: list[str]) -> WantedEngines:
    if change not in ("add", "remove"):
        raise ConfigError(f"{change!r} is neither add nor remove")
    name = what if change == "remove" and what in there else None
    if what is not None and name is None and not (what.isdecimal() and int(what)):
        known = f", or one of {', '.join(there)}" if change == "remove" and there else ""
        raise ConfigError(f"{change} {what!r}: it must be how many{known}")
    count = 1 if what is None or name else int(what)
    wanted = now + count if change == "add" else now - count
    if wanted < 1:
        raise ConfigError(f"the run has {now} engine(s), and at least one stays: remove fewer, or end the run")
    return WantedEngines(wanted, name or "")


def _when(status: RunStatus | None) -> str:
    if status and status.state in _GOES_ON:
        return "the run takes that within seconds, and says so in its notes"
    return "that counts when it is resumed"
