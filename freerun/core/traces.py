"""Where an exception in a user's code came from: one line that names their file, not ours or a library's."""

import os
import sysconfig
import traceback
from pathlib import Path

_OURS = str(Path(__file__).parents[1])
_INSTALLED = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
_STANDARD = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
LONGEST_LINE = 20_000
"""Characters. An exception may carry a whole answer in its message."""


def describe(error: BaseException) -> str:
    """`mine.py:3: KeyError: 'answer'`."""
    return f"{raised_at(error)}{in_one_line(error)}"


def in_one_line(error: BaseException) -> str:
    return " ".join(traceback.format_exception_only(error)[-1].split())[:LONGEST_LINE]


def raised_at(error: BaseException) -> str:
    """`mine.py:3: `, the innermost line of the user's own code; of a library's where there is none; "" without any."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).is_file():
        return f"{error.filename}:{error.lineno}: "  # of the file that does not parse, which has no frame
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_foreign(frame.filename)]
    if not frames:
        return ""
    closest = max(_closeness(frame.filename) for frame in frames)
    innermost = [frame for frame in frames if _closeness(frame.filename) == closest][-1]
    return f"{innermost.filename}:{innermost.lineno}: "


def _is_foreign(file: str) -> bool:
    return not file.startswith((_OURS, "<frozen")) and f"{os.sep}importlib{os.sep}" not in file


def _closeness(file: str) -> int:
    """How likely it is the user's: more than an installed package, which is more than the standard library."""
    if file.startswith(_INSTALLED):
        return 1
    return 0 if file.startswith(_STANDARD) else 2
