"""The folder a run leaves behind, and files of one JSON object a line inside it.

Promises: a new run never writes into an old one's folder, no two processes write into the same one, and a kill at any
moment leaves whole lines only, save possibly the last, which readers skip and the next writer removes. Does not know
what the lines mean.
"""

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from freerun.core import ConfigError, DataError, FreerunError
from freerun.core.files import atomic_file

_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)
_LEAST_BYTES = 1 << 16
"""What there must be room for when a run goes on: a few lines in each of its files."""


@dataclass(frozen=True)
class RunFolder:
    """Names the files of a run. Opening an existing run (to resume it, to report on it) is `RunFolder(path)`."""

    path: Path

    @classmethod
    def create(cls, root: Path, name: str) -> "RunFolder":
        """Make `root/name`, or `root/name-2`, `-3`, … where an older run is in the way.

        The folder is claimed by making `logs` inside it, which only one process can do: two runs started in the
        same moment get two folders.
        """
        if not name or name in {".", ".."} or "/" in name or os.sep in name:
            raise ConfigError(f"a run's name is one folder name without slashes; {name!r} is not")
        number = 1
        while True:
            path = root / (name if number == 1 else f"{name}-{number}")
            try:
                if _claim(path):
                    return cls(path)
            except (OSError, ValueError) as error:  # the latter of a path with a byte 0
                why = getattr(error, "strerror", None) or error
                raise ConfigError(f"{str(path)!r:.160} cannot be made ({why}): set runs to a folder of yours") from None
            number += 1

    @contextmanager
    def locked(self) -> Iterator[None]:
        """The folder is ours alone. The lock goes with the process, kill -9 included."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            _lock(fd, self.path)
            yield
        finally:
            os.close(fd)

    def refuse_unwritable(self) -> None:
        """A folder on a full disk, or on one that may only be read: before anything is started."""
        probe = self.path / f".written-{os.getpid()}"
        with writing(self.path):
            try:
                probe.write_bytes(bytes(_LEAST_BYTES))
            finally:
                with suppress(OSError):
                    probe.unlink(missing_ok=True)

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def config(self) -> Path:
        """Every value of the configuration, and where each came from."""
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        """A line for each step, with all its figures."""
        return self.path / "metrics.jsonl"

    @property
    def evals(self) -> Path:
        """A line for each evaluation."""
        return self.path / "evals.jsonl"

    @property
    def samples(self) -> Path:
        """Every sample, token by token, in SQLite: `freerun samples` prints them, `freerun watch` shows them."""
        return self.path / "run.db"

    @property
    def reference(self) -> Path:
        """What the model that a `freerun dpo` began with gives to each answer."""
        return self.path / "reference.npz"

    @property
    def status(self) -> Path:
        """What every process is doing now, with a sign of life; and how the run ended."""
        return self.path / "status.json"

    @property
    def notes(self) -> Path:
        """What you should read: warnings, each with its likely cause."""
        return self.path / "notes.jsonl"

    @property
    def timeline(self) -> Path:
        """Who did what when; open it at ui.perfetto.dev."""
        return self.path / "timeline.json"

    @property
    def report(self) -> Path:
        """The page to look at."""
        return self.path / "report.html"

    @property
    def checkpoints(self) -> Path:
        """`last`, an ordinary Hugging Face folder; `step-N`, to resume from."""
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        """What the run's processes printed."""
        return self.path / "logs"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the disk refuses, for want of room most often, is one line that says how to mend it."""
    try:
        yield
    except OSError as error:
        mend = "make it writable" if error.errno in _FORBIDDEN else "make room for it"
        raise FreerunError(f"{path} cannot be written ({error.strerror}): {mend}, and try again") from None


def _lock(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(f"{path} is in use: its run is still going; end that one first") from None


def _claim(path: Path) -> bool:
    """Whether `path` was missing or empty, and is now ours."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        return False
    path.mkdir(parents=True, exist_ok=True)
    try:
        (path / "logs").mkdir()
    except FileExistsError:  # another run was faster
        return False
    return True


class JsonLines:
    """Append objects (dataclasses too) to a file, one a line, each handed to the system at once.

    Opening a file whose last line is torn removes that line, so what is appended after a crash starts on a line of
    its own.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _mend(path)
            self._file = path.open("ab", buffering=0)

    def append(self, record: Any) -> None:
        line = memoryview(encode(record) + b"\n")
        with writing(self._path):
            while line:
                line = line[self._file.write(line) :]

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All objects of the file; none where it is missing. A torn last line is skipped."""
    return list(iter_lines(path))


def iter_lines(path: Path) -> Iterator[dict[str, Any]]:
    """`read_lines` for files that may be too large to hold."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                yield msgspec.json.decode(line, type=dict[str, Any])
            except msgspec.DecodeError as error:
                if not line.endswith(b"\n"):
                    return
                raise DataError(f"{path}, line {number}, is not a JSON object ({error}): delete that line") from error


def keep_lines(path: Path, wanted: Callable[[dict[str, Any]], bool]) -> None:
    """Leave those lines only. The file is replaced as a whole, so a kill leaves the old one or the new one; and not at
    all where it has no others, for the disk may be full."""
    if all(wanted(line) for line in iter_lines(path)):
        return
    with writing(path), atomic_file(path) as file:
        file.writelines(encode(line) + b"\n" for line in iter_lines(path) if wanted(line))


def encode(record: Any) -> bytes:
    """JSON that every reader accepts: NaN and infinities become null, half characters become U+FFFD."""
    try:
        return msgspec.json.encode(record)
    except UnicodeEncodeError:  # a lone surrogate: text from outside may hold one, and must not end a run
        return msgspec.json.encode(_whole(msgspec.to_builtins(record)))


def whole(text: str) -> str:
    """The same text, with U+FFFD for each half character (a lone surrogate), which no file can hold."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, dict):
        return {_whole(k): _whole(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(v) for v in value]
    return value


def _mend(path: Path) -> None:
    """End the file with a whole line: complete the last one if only its newline is missing, else cut it off."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        start = _start_of_last_line(file.seek(0, os.SEEK_END), file.fileno())
        file.seek(start)
        last = file.read()
        if not last or last.endswith(b"\n"):
            return
        try:
            msgspec.json.decode(last)
            file.write(b"\n")
        except msgspec.DecodeError:
            file.truncate(start)


def _start_of_last_line(size: int, fd: int, chunk: int = 1 << 16) -> int:
    """The offset after the last newline that is not the file's last byte."""
    end = max(size - 1, 0)
    while end > 0:
        begin = max(end - chunk, 0)
        found = os.pread(fd, end - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0
