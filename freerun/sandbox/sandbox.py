"""Programs that nobody has read, run where they can do no harm. Linux only, and never without protection.

`Sandbox` starts a container on first use, proves it by trying the ways out of it, and has runs take turns in it; a
machine where no container holds is refused. Where a container serves one run only, the next is started while the one
before is used.
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
from freerun.sandbox.base import Backend, Ending, Exam, Examined, Limits, Outcome
from freerun.sandbox.container import Container, ContainerError, Report
from freerun.sandbox.inside import proof
from freerun.sandbox.inside.syscalls import ARCHITECTURES
from freerun.sandbox.view import FOLDERS, python, roots

T = TypeVar("T")
BROKE_IT = "it broke the sandbox that it ran in, twice"
PROOF_LIMITS = Limits(cpu_s=10, wall_s=20, processes=16)


class Sandbox:
    """One run at a time. `backend`: who makes its containers; when not given, the first that holds on this machine."""

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
        """Refuses, with ConfigError, a machine where no container holds."""
        if self._container is not None:
            return
        _check_machine()
        failures: dict[Backend, str] = {}
        for backend in [self.backend] if self.backend else available():
            try:
                self._container = _proven(backend, self._nested)
                self.backend = backend
                return
            except ContainerError as error:
                failures[backend] = str(error)
        raise _refusal(failures)

    @property
    def keeps_its_container(self) -> bool:
        """The container of an open sandbox serves many runs, each in its own namespaces, and need not be made anew."""
        assert self._container is not None
        self._container.ready()
        return self._container.nested

    def close(self) -> None:
        if self._container is not None:
            self._container.end()
            self._container = None

    def run(
        self,
        sources: Sequence[str],
        stdin: bytes = b"",
        limits: Limits | None = None,
        *,
        command: Sequence[str] = (),
        file: str = "main.py",
    ) -> Outcome:
        """Run the first of the sources that is Python, as a script; or by a command, on the first of them in a file."""
        limits = limits or Limits()
        job = {"sources": list(sources), "entry": None, "header": "", "command": list(command), "file": file}

        def once() -> Outcome:
            with _files(job, None, stdin, None, None) as files:
                report = self._run(files, limits, tests=False, reserves_memory=bool(command))
                stdout, stderr = (_contents(number, limits.file_mb << 20) for number in files[3:])
                said = _lines(_contents(files[1], 1 << 20))
            unreadable = said[0]["unreadable"] if said else ""
            return Outcome(report.ending, report.exit_code, stdout, stderr, report.cpu_s, unreadable)

        return self._again(once) or Outcome(Ending.SIGNAL, None, b"", BROKE_IT.encode(), 0.0)

    def examine(self, sources: Sequence[str], exam: Exam, limits: Limits | None = None) -> Examined:
        """Test the functions of the first of the sources that is Python and defines what is asked for."""
        program = {"sources": list(sources), "entry": exam.entry or exam.defines, "header": exam.header}

        def once() -> Examined:
            with _files(program, None, asdict(exam)) as files:
                report = self._run(files, limits or Limits(), tests=True)
                said = _lines(_contents(files[1], 1 << 24))
            return _examined(report, said)

        return self._again(once) or Examined(Ending.SIGNAL, None, (), False, BROKE_IT)

    def _again(self, once: Callable[[], T]) -> T | None:
        """In another container, if the first broke down. None if that did too: a new container is proven before it
        is used, it is then the program that breaks them."""
        for _ in range(2):
            self.open()
            with suppress(ContainerError):
                return once()
        return None

    def _run(self, files: list[int], limits: Limits, *, tests: bool, reserves_memory: bool = False) -> Report:
        assert self._container is not None
        assert self.backend is not None
        container = self._container
        try:
            container.ready()
            if not container.nested:
                self._container = Container(self.backend, nested=self._nested)  # for the next, while this one is used
            report = container.run(files, limits, tests=tests, reserves_memory=reserves_memory)
            if report.died and container.nested:
                raise ContainerError("the sandbox broke down: its container died")
        except BaseException:  # whatever it was: what this container says next may be about this run
            self._container = None if self._container is container else self._container
            container.end()
            raise
        if not container.nested:
            container.end()
        return report


def available() -> list[Backend]:
    """Those that could be tried, in order."""
    return [*([Backend.BUBBLEWRAP] if shutil.which("bwrap") else []), Backend.NAMESPACES]


def _proven(backend: Backend, nested: bool) -> Container:
    """A container of which a program of ours found no way out."""
    container = Container(backend, nested=nested)
    try:
        container.ready()
        stdin = f"{PROOF_LIMITS.processes}\n{' '.join(roots())}\n".encode()
        job = {"sources": [Path(proof.__file__).read_text()], "entry": None, "header": "", "command": []}
        with _files(job, None, stdin, None, None) as files:
            report = container.run(files, PROOF_LIMITS, tests=False)
            found, errors = (_contents(number, 1 << 16).decode(errors="replace").strip() for number in files[3:])
        if report.ending is not Ending.EXITED or report.exit_code != 0:
            raise ContainerError(
                f"its proof ended by {report.ending} ({report.exit_code}) {errors.rpartition(chr(10))[2]}"
            )
        if found:
            raise ContainerError(f"it does not hold: {'; '.join(found.splitlines())}")
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
                f"judging code needs a Python outside {folder}, which programs find empty: not {python()}"
            )


def _refusal(failures: dict[Backend, str]) -> ConfigError:
    why = "; ".join(f"{backend}: {failure}" for backend, failure in failures.items())
    if shutil.which("bwrap") is None:
        return ConfigError(f"judging code needs bubblewrap (without it: {why}): apt install bubblewrap")
    return ConfigError(f"judging code needs a sandbox, and none holds here ({why}): {_fix()}")


def _fix() -> str:
    """What to change on a machine that allows no user namespaces."""
    for switch, closed, fix in (
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "0"),
        ("kernel/unprivileged_userns_clone", "0", "1"),
        ("user/max_user_namespaces", "0", "10000"),
    ):
        path = Path("/proc/sys", switch)
        if path.exists() and path.read_text().strip() == closed:
            return f"sudo sysctl -w {switch.replace('/', '.')}={fix}"
    return "in a container, start it with --cap-add SYS_ADMIN --security-opt seccomp=unconfined,apparmor=unconfined"


def _examined(report: Report, said: list[dict[str, Any]]) -> Examined:
    results = tuple(line["ok"] for line in said if "test" in line)
    unreadable, detail = "", ""
    for line in said:
        if "unfit" in line:
            raise RewardError(f"this task cannot be judged: {line['unfit']}")
        unreadable = unreadable or line.get("unreadable", "")
        detail = detail or line.get("detail", "") or line.get("failed", "") or line.get("broken", "")
    finished = bool(said) and said[-1].get("done") is True and report.ending in (Ending.EXITED, Ending.SIGNAL)
    if finished and not said[-1]["asserted"]:
        finished, detail = False, detail or "its tests asserted nothing of it"
    return Examined(report.ending, report.exit_code, results, finished, detail or unreadable, unreadable)


@contextmanager
def _files(*contents: Any) -> Iterator[list[int]]:
    """Files in memory, of bytes, of JSON, or empty to be written to."""
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


def _contents(number: int, most: int) -> bytes:
    return os.pread(number, most, 0)


def _lines(text: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]
