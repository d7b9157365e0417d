"""The parts of a run, found below its controller in /proc, and held so that nobody else can be struck in their place.

A part is held by a file descriptor of its process: what is sent to it reaches that process or nobody, also when its
number was given to another one meanwhile. Only descendants of the controller are found, so no other process is touched.
"""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from freerun.bench.chaos_schedule import PartKind
from freerun.machine.descendants import children
from freerun.machine.preloaded import PRELOADED

_MODULES = {
    "freerun.rewards.forkserver": PartKind.JUDGE,
    "freerun.rollouts.agents.forkserver": PartKind.AGENT,
}
_CHILD = "freerun.run.child"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Part:
    kind: PartKind
    name: str
    """As the run's logs call it."""
    pid: int
    parent: int

    @property
    def rss_bytes(self) -> int:
        """0 once it has ended."""
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE_BYTES
        except (OSError, IndexError):
            return 0


def parts_of(controller: int) -> list[Part]:
    """The controller first, and all that it has started, by name."""
    found = [Part(PartKind.CONTROLLER, "controller", controller, os.getpid())]
    for parent, pid in _started_by(controller):
        words = _command(pid)
        if _CHILD in words and (kind := _kind(words)):
            found.append(Part(kind, _log_of(pid) or kind, pid, parent))
        for kind in (kind for module, kind in _MODULES.items() if module in words):
            found.append(Part(kind, f"{kind} forkserver", pid, controller))
            workers = enumerate(sorted(children(pid)), start=1)
            found += [Part(kind, f"{kind} worker {number}", worker, pid) for number, worker in workers]
    again: Counter[str] = Counter()
    return [_numbered(part, again) for part in found]


class Held:
    """A part that is about to be struck, or was. Raises ProcessLookupError if it is gone."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self._fd = os.pidfd_open(part.pid)
        if _parent(part.pid) != part.parent:  # now that it is held: it is still who was found
            self.release()
            raise ProcessLookupError

    def send(self, which: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, which)

    def release(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _started_by(controller: int) -> Iterator[tuple[int, int]]:
    """The parent of each process and its id: the controller itself, or what it forks its children from."""
    for pid in sorted(children(controller)):
        if PRELOADED in _command(pid):
            yield from ((pid, child) for child in sorted(children(pid)))
        else:
            yield controller, pid


def _kind(words: list[str]) -> PartKind | None:
    name = words[words.index(_CHILD) + 1]
    return PartKind(name) if name in (PartKind.ENGINE, PartKind.TRAINER, PartKind.JUDGE) else None


def _numbered(part: Part, again: Counter[str]) -> Part:
    again[part.name] += 1
    number = again[part.name]
    return part if number == 1 else Part(part.kind, f"{part.name} ({number})", part.pid, part.parent)


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _log_of(pid: int) -> str | None:
    """What it prints goes to a file of its name."""
    with suppress(OSError):
        log = Path(os.readlink(f"/proc/{pid}/fd/1"))
        return log.stem if log.suffix == ".log" else None
    return None


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None
