"""The words of the sandbox: what a run may use, and how it ended."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run may use, all its processes together where not said otherwise."""

    cpu_s: float = 6.0
    wall_s: float = 8.0
    """Less than the judge's deadline, so that a slow program is the answer's failure and not the judge's."""
    memory_mb: int = 512
    processes: int = 32
    """Processes and threads."""
    file_mb: int = 16
    """Of one file, of its folder, and of what it prints."""


class Ending(StrEnum):
    """How a run ended."""

    EXITED = "exited"
    """By itself, whatever its exit code."""
    SIGNAL = "signal"
    """By a signal: it crashed, or killed itself."""
    CPU = "cpu"
    """It used all its processor time."""
    WALL = "wall"
    """It did not end in time."""
    MEMORY = "memory"
    """It used more memory than it may."""
    OUTPUT = "output"
    """It wrote more than it may, to a file or to its output."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of a program that was run as a script."""

    ending: Ending
    exit_code: int | None
    """None when it did not exit; the negative number of the signal that ended it."""
    stdout: bytes
    stderr: bytes
    cpu_s: float
    unreadable: str = ""
    """Why what was given is no program at all."""


@dataclass(frozen=True, slots=True)
class Exam:
    """How the functions of a program are tested. The program sees nothing of it but the header and its arguments."""

    entry: str | None = None
    """The function, where there is one in particular."""
    defines: str | None = None
    """Without an entry: what the program must define, to choose among ways to read an answer."""
    asked: Sequence[str] = ()
    """Names that are the program's to define, whatever else has them: Python's own, or the prompt."""
    header: str = ""
    """Python that comes before the program, and before its tests: imports and helpers that the prompt gives."""
    setup: str = ""
    """Python that comes before the tests."""
    tests: Sequence[str] = ()
    """Pieces of Python that fail by raising."""
    calls: Sequence[tuple[list[Any], list[Any]]] | None = None
    """Instead of tests: arguments of `entry`, and the values that it may return."""


@dataclass(frozen=True, slots=True)
class Examined:
    """Of a program whose functions were tested."""

    ending: Ending
    exit_code: int | None
    """Of the program, if it ended before its tests did."""
    results: tuple[bool, ...]
    """Of every test that was come to."""
    finished: bool
    """All tests were come to. Without it, nothing is passed."""
    detail: str
    """Of what went wrong first."""
    unreadable: str = ""


class Backend(StrEnum):
    """Who makes a container."""

    BUBBLEWRAP = "bubblewrap"
    NAMESPACES = "namespaces"
