"""The beginning of a run: its folder, and what is said when that is not the one that was asked for. A run that fails
before its first step leaves no folder behind, unless there is something in it to learn from."""

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from freerun.core import ConfigError, FreerunError
from freerun.observe.folder import RunFolder, iter_lines
from freerun.run.prepare import Prepared
from freerun.run.resume import can_go_on, load_run, newest_step
from freerun.run.start import Start, create_folder


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def begin(prepared: Prepared, say: Callable[[str], None] = _say) -> Start:
    """A new run in a folder of its own. Says so where the name is taken."""
    folder, asked = create_folder(prepared), RunFolder(Path(prepared.config.runs) / prepared.config.name)
    if folder.path != asked.path:
        say(f"{in_words(asked)}: this run is {folder.path}{_how_to_go_on(asked)}")
    return Start(folder)


def taken(prepared: Prepared) -> RunFolder | None:
    """What is in the place of the folder that a run would have; None if nothing is."""
    asked = RunFolder(Path(prepared.config.runs) / prepared.config.name)
    is_free = not asked.path.exists() or (asked.path.is_dir() and not any(asked.path.iterdir()))
    return None if is_free else asked


def in_words(folder: RunFolder) -> str:
    """`runs/math exists (12 of 20 steps)`."""
    if not folder.config.is_file():
        return f"{folder.path} exists"
    done = steps_done(folder)
    try:
        planned = load_run(folder)[0].control.steps
    except ConfigError:  # of an older Freerun, say
        return f"{folder.path} exists ({done} steps)"
    if done >= planned:
        return f"{folder.path} exists ({done} steps, done)"
    return f"{folder.path} exists ({done} of {planned} steps{', still going' if _is_locked(folder) else ''})"


def steps_done(folder: RunFolder) -> int:
    """By its metrics; 0 where they cannot be read."""
    try:
        return max((int(line.get("step") or 0) for line in iter_lines(folder.metrics)), default=0)
    except (FreerunError, OSError, TypeError, ValueError):
        return 0


def _how_to_go_on(folder: RunFolder) -> str:
    if not folder.config.is_file() or not can_go_on(folder) or _is_locked(folder):
        return ""
    return f"; to go on with the old one: freerun resume {folder.path}"


def _is_locked(folder: RunFolder) -> bool:
    try:
        with folder.locked():
            return False
    except ConfigError:
        return True


@contextmanager
def gone_if_nothing_was_done(start: Start, say: Callable[[str], None] = _say) -> Iterator[None]:
    """Removes the folder of a new run that fails in the block before its first step. What the user did wrong is in the
    error's own line; of any other failure the logs may tell more, and are kept where there are any."""
    try:
        yield
    except BaseException as error:
        folder = start.folder
        if not start.goes_on and not steps_done(folder) and not newest_step(folder):
            is_explained = not isinstance(error, Exception) or (isinstance(error, FreerunError) and error.is_users)
            if is_explained or not _has_logs(folder):
                shutil.rmtree(folder.path, ignore_errors=True)
            elif str(folder.logs) not in str(error):
                say(f"the logs of what was started are in {folder.logs}")
        raise


def _has_logs(folder: RunFolder) -> bool:
    return any(file.is_file() and file.stat().st_size for file in folder.logs.glob("*"))
