"""`Sandbox` runs untrusted programs where they can do no harm. Linux only, and never without protection.

A sandbox starts a container on first use, checks it by trying to escape from it, and then runs one program at a time in
it. A machine on which no container passes that check is refused. Where a container can serve only one run, the next
container starts while the current one is in use.
"""

import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from freerun.core import ConfigError, RewardError
from freerun.sandbox.base import Backend, Ending, FunctionTestResult, FunctionTests, Limits, ScriptResult
from freerun.sandbox.container import Container, ContainerError, RunReport
from freerun.sandbox.filesystem import FOLDERS, python, root_entries
from freerun.sandbox.inside import escape_check
from freerun.sandbox.inside.syscalls import ARCHITECTURES

T = TypeVar("T")
BROKE_SANDBOX = "it broke the sandbox it ran in, twice"
ESCAPE_CHECK_LIMITS = Limits(cpu_s=10, wall_s=20, processes=16)


class Sandbox:
    """Runs one program at a time. `backend` creates its containers; by default, the first one that works here."""

    def __init__(self, backend: Backend | None = None, *, nested: bool = True) -> None:
        self.backend = backend
        self._nested = nested
        self._container: Container | None = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Start a container, if none is open. ConfigError on a machine where no container passes the escape check."""
        if self._container is not None:
            return
        _check_machine()
        failures: dict[Backend, str] = {}
        for backend in [self.backend] if self.backend else available():
            try:
                self._container = _checked_container(backend, self._nested)
                self.backend = backend
                return
            except ContainerError as error:
                failures[backend] = str(error)
        raise _refusal(failures)

    @property
    def reuses_container(self) -> bool:
        """Whether one container serves many runs, each in its own namespaces, instead of being created for each run."""
        assert self._container is not None
        self._container.ready()
        return self._container.nested

    def close(self) -> None:
        if self._container is not None:
            self._container.end()
            self._container = None

    def run_script(
        self,
        sources: Sequence[str],
        stdin: bytes = b"",
        limits: Limits | None = None,
        *,
        command: Sequence[str] = (),
        file: str = "main.py",
    ) -> ScriptResult:
        """Run the first of the sources that is valid Python as a script.

        With a `command`, write the first source to `file` instead and run the command.
        """
        limits = limits or Limits()
        program = {"sources": list(sources), "entry": None, "header": "", "command": list(command), "file": file}

        def run_once() -> ScriptResult:
            with _memory_files(program, None, stdin, None, None) as files:
                report = self._run(files, limits, tests=False, reserves_memory=bool(command))
                stdout, stderr = (_contents(number, limits.file_mb << 20) for number in files[3:])
                lines = _json_lines(_contents(files[1], 1 << 20))
            unreadable = lines[0]["unreadable"] if lines else ""
            return ScriptResult(report.ending, report.exit_code, stdout, stderr, report.cpu_s, unreadable)

        return self._try_twice(run_once) or ScriptResult(Ending.SIGNAL, None, b"", BROKE_SANDBOX.encode(), 0.0)

    def run_tests(
        self, sources: Sequence[str], tests: FunctionTests, limits: Limits | None = None
    ) -> FunctionTestResult:
        """Test the functions of the first of the sources that is valid Python and defines what the tests need."""
        program = {"sources": list(sources), "entry": tests.entry or tests.defines, "header": tests.header}

        def run_once() -> FunctionTestResult:
            with _memory_files(program, None, asdict(tests)) as files:
                report = self._run(files, limits or Limits(), tests=True)
                lines = _json_lines(_contents(files[1], 1 << 24))
            return _test_result(report, lines)

        return self._try_twice(run_once) or FunctionTestResult(Ending.SIGNAL, None, (), False, BROKE_SANDBOX)

    def _try_twice(self, run_once: Callable[[], T]) -> T | None:
        """Run in another container if the first broke down. None if that one broke down too: a new container is checked
        before use, so it must be the program that breaks them."""
        for _ in range(2):
            self.open()
            with suppress(ContainerError):
                return run_once()
        return None

    def _run(self, files: list[int], limits: Limits, *, tests: bool, reserves_memory: bool = False) -> RunReport:
        assert self._container is not None
        assert self.backend is not None
        container = self._container
        try:
            container.ready()
            if not container.nested:
                self._container = Container(self.backend, nested=self._nested)  # starts while this one is in use
            report = container.run(files, limits, tests=tests, reserves_memory=reserves_memory)
            if report.died and container.nested:
                raise ContainerError("the sandbox broke down: its container died")
        except BaseException:  # whatever it was: this container's next report might be about this run
            self._container = None if self._container is container else self._container
            container.end()
            raise
        if not container.nested:
            container.end()
        return report


def available() -> list[Backend]:
    """The backends worth trying on this machine, in order of preference."""
    return [*([Backend.BUBBLEWRAP] if shutil.which("bwrap") else []), Backend.NAMESPACES]


def _checked_container(backend: Backend, nested: bool) -> Container:
    """Start a container and run our own program in it, which tries to escape. ContainerError if it can."""
    container = Container(backend, nested=nested)
    try:
        container.ready()
        stdin = f"{ESCAPE_CHECK_LIMITS.processes}\n{' '.join(root_entries())}\n".encode()
        program = {"sources": [Path(escape_check.__file__).read_text()], "entry": None, "header": "", "command": []}
        with _memory_files(program, None, stdin, None, None) as files:
            report = container.run(files, ESCAPE_CHECK_LIMITS, tests=False)
            found, errors = (_contents(number, 1 << 16).decode(errors="replace").strip() for number in files[3:])
        if report.ending is not Ending.EXITED or report.exit_code != 0:
            raise ContainerError(
                f"its escape check failed: {report.ending} ({report.exit_code}) {errors.rpartition(chr(10))[2]}"
            )
        if found:
            raise ContainerError(f"it is not safe: {'; '.join(found.splitlines())}")
        if not container.nested:
            container.end()
            container = Container(backend, nested=nested)
        return container
    except BaseException:
        container.end()
        raise


def _check_machine() -> None:
    if sys.platform != "linux":
        raise ConfigError(f"judging code needs Linux: there is no sandbox on {sys.platform}")
    if platform.machine() not in ARCHITECTURES:
        raise ConfigError(f"judging code needs x86-64 or aarch64: there is no sandbox on {platform.machine()}")
    for folder in FOLDERS:
        if Path(python()).is_relative_to(folder):
            raise ConfigError(
                f"judging code needs a Python outside {folder}, which is empty in the sandbox: not {python()}"
            )


def _refusal(failures: dict[Backend, str]) -> ConfigError:
    why = "; ".join(f"{backend}: {failure}" for backend, failure in failures.items())
    if shutil.which("bwrap") is None:
        return ConfigError(f"judging code needs bubblewrap (without it: {why}): apt install bubblewrap")
    return ConfigError(f"judging code needs a sandbox, and none works here ({why}): {_fix()}")


def _fix() -> str:
    """The command that makes this machine allow user namespaces."""
    for switch, disabled, fix in (
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "0"),
        ("kernel/unprivileged_userns_clone", "0", "1"),
        ("user/max_user_namespaces", "0", "10000"),
    ):
        path = Path("/proc/sys", switch)
        if path.exists() and path.read_text().strip() == disabled:
            return f"sudo sysctl -w {switch.replace('/', '.')}={fix}"
    return "in a container, start it with --cap-add SYS_ADMIN --security-opt seccomp=unconfined,apparmor=unconfined"


def _test_result(report: RunReport, lines: list[dict[str, Any]]) -> FunctionTestResult:
    """`lines` are what the test runner wrote (`inside/testrunner.py`)."""
    results = tuple(line["ok"] for line in lines if "test" in line)
    unreadable, detail = "", ""
    for line in lines:
        if "invalid_tests" in line:
            raise RewardError(f"this task cannot be judged: {line['invalid_tests']}")
        unreadable = unreadable or line.get("unreadable", "")
        detail = detail or line.get("detail", "") or line.get("failed", "") or line.get("broken", "")
    finished = bool(lines) and lines[-1].get("done") is True and report.ending in (Ending.EXITED, Ending.SIGNAL)
    if finished and not lines[-1]["asserted"]:
        finished, detail = False, detail or "its tests asserted nothing about it"
    return FunctionTestResult(report.ending, report.exit_code, results, finished, detail or unreadable, unreadable)


@contextmanager
def _memory_files(*contents: Any) -> Iterator[list[int]]:
    """Open a file in memory for each of the contents: bytes, a value to write as JSON, or None for an empty file."""
    files: list[int] = []
    try:
        for content in contents:
            files.append(os.memfd_create("run", os.MFD_CLOEXEC))
            data = content if isinstance(content, bytes) else b"" if content is None else json.dumps(content).encode()
            with open(files[-1], "wb", closefd=False) as file:
                file.write(data)
            os.lseek(files[-1], 0, os.SEEK_SET)
        yield files
    finally:
        for number in files:
            os.close(number)


def _contents(number: int, max_bytes: int) -> bytes:
    return os.pread(number, max_bytes, 0)


def _json_lines(text: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]
