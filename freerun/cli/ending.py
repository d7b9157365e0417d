"""How a command ends: what went wrong is one line, and a traceback is for whoever asks for it (FREERUN_TRACEBACK=1)."""

import errno
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from freerun.core import ConfigError, FreerunError
from freerun.core.traces import in_one_line

SHOWS_MORE = "FREERUN_TRACEBACK"
"""The environment variable that has tracebacks and the ends of logs shown."""


def end_with(command: Callable[[], object]) -> int:
    """Run it. The exit code: 0, or 2 after a mistake of the user's, or 1 after any other failure."""
    _write_what_can_be_written()
    try:
        _refuse_a_folder_that_is_gone()
        command()
        code = 0
    except FreerunError as error:
        code = _tell(error)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except OSError as error:
        code = _tell(_of_output(error)) if error.errno in (errno.EPIPE, errno.ENOSPC) else _tell_of_our_own(error)
    except Exception as error:
        code = _tell_of_our_own(error)
    return _flushed(code)


def _write_what_can_be_written() -> None:
    """A terminal that knows ASCII alone gets question marks, not an exception."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _refuse_a_folder_that_is_gone() -> None:
    try:
        Path.cwd()
    except OSError:
        raise ConfigError("the working folder does not exist any more: cd to another one") from None


def _tell(error: FreerunError) -> int:
    more = ""
    if error.detail and os.environ.get(SHOWS_MORE):
        print(error.detail, file=sys.stderr)
    elif error.detail.strip().partition("\n")[2]:
        more = f" ({SHOWS_MORE}=1 shows more)"
    print(f"freerun: {error}{more}", file=sys.stderr)
    return 2 if error.is_users else 1


def _of_output(error: OSError) -> FreerunError:
    return FreerunError(f"the output cannot be written ({error.strerror}): write it to another place")


def _tell_of_our_own(error: Exception) -> int:
    """What nobody foresaw: its traceback is kept in a file, for whoever mends it."""
    told = "".join(traceback.format_exception(error))
    line = in_one_line(error)[:200]
    if os.environ.get(SHOWS_MORE):
        print(told, file=sys.stderr)
    try:
        with tempfile.NamedTemporaryFile("w", prefix="freerun-traceback-", suffix=".txt", delete=False) as file:
            file.write(told)
        where = f"the traceback is in {file.name}"
    except OSError:
        where = f"{SHOWS_MORE}=1 shows the traceback"
    print(f"freerun: an error that is Freerun's own fault, please report it: {line}; {where}", file=sys.stderr)
    return 1


def _flushed(code: int) -> int:
    """What is still to be written may find a full disk, or nobody who reads."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for the flush at the end of the process
        if error.errno != errno.EPIPE:
            return code or _tell(_of_output(error))
    return code
