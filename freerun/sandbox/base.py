"""The sandbox's nouns: what a run may use, how it ended, and what came of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run may use. Limits apply to all its processes together unless stated otherwise."""

    cpu_s: float = 6.0
    wall_s: float = 8.0
    """Keep it below the judge's deadline, so that a slow program fails as an answer instead of failing the judge."""
    memory_mb: int = 512
    processes: int = 32
    """Processes and threads."""
    file_mb: int = 16
    """The size of one file, of each writable folder, and of each output stream."""


class Ending(StrEnum):
    """How a run ended."""

    EXITED = "exited"
    """It exited by itself, whatever its exit code."""
    SIGNAL = "signal"
    """A signal ended it: it crashed, or killed itself."""
    CPU = "cpu"
    """It used up its processor time."""
    WALL = "wall"
    """It did not end in time."""
    MEMORY = "memory"
    """It used more memory than allowed."""
    OUTPUT = "output"
    """It wrote more than allowed, to a file or to its output."""


@dataclass(frozen=True, slots=True)
class ScriptResult:
    """What came of a program that was run as a script."""

    ending: Ending
    exit_code: int | None
    """None if it did not exit; the negative signal number if a signal ended it."""
    stdout: bytes
    stderr: bytes
    cpu_s: float
    unreadable: str = ""
    """The syntax error, if none of the sources is a valid program."""


@dataclass(frozen=True, slots=True)
class FunctionTests:
    """Tests that call a program's functions. The program sees only `header` and the arguments it is called with."""

    entry: str | None = None
    """The function under test, if the task names one."""
    defines: str | None = None
    """Without an entry: a name the program must define, used to choose among several possible sources."""
    program_names: Sequence[str] = ()
    """Names that tests take from the program even if Python or the prompt defines them too."""
    header: str = ""
    """Python that runs before the program and before the tests: imports and helpers from the prompt."""
    setup: str = ""
    """Python that runs before the tests."""
    tests: Sequence[str] = ()
    """Python snippets that fail by raising."""
    calls: Sequence[tuple[list[Any], list[Any]]] | None = None
    """Used instead of `tests`: arguments for `entry`, and the return values that are accepted."""


@dataclass(frozen=True, slots=True)
class FunctionTestResult:
    """What came of a program whose functions were tested."""

    ending: Ending
    exit_code: int | None
    """The program's exit code, if it ended before its tests did."""
    results: tuple[bool, ...]
    """Whether each test passed, for the tests that were reached."""
    finished: bool
    """Whether all tests were reached. If not, nothing counts as passed."""
    detail: str
    """The first thing that went wrong."""
    unreadable: str = ""
    """The syntax error, if none of the sources is a valid program."""


class Backend(StrEnum):
    """What creates a container."""

    BUBBLEWRAP = "bubblewrap"
    NAMESPACES = "namespaces"
