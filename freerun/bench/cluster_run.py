"""A training run on machines that are network namespaces, started by the commands that a user would type.

`freerun train … launcher=nodes` on the first machine, and `freerun node --join` on each of the others. What happens is
read from the run's log (`run_log.py`) and from /proc; nothing of the run is in this process.
"""

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType
from typing import Any

from freerun.bench.namespaces import MachineNamespace
from freerun.bench.run_log import RunLog
from freerun.core.errors import FreerunError
from freerun.machine.nodes.key import KEY
from freerun.observe.folder import read_lines

PORT = 7411
_NONE: Mapping[str, str] = MappingProxyType({})
_LOOK_S = 0.02
_END_S = 15.0
_RUN_S = 1_800.0
"""The longest that a whole run may take."""
_TAIL = 4_000
"""Characters of what a run has printed that an error shows."""
_LISTENING = "0A"
"""How /proc/PID/net/tcp writes that state."""


@asynccontextmanager
async def freerun(
    machine: MachineNamespace, *arguments: str, log: Path, environment: Mapping[str, str] = _NONE
) -> AsyncIterator[Process]:
    """The command, on that machine, with what it prints in that file; ended on leaving, if it has not by then."""
    with log.open("ab") as printed:
        process = await asyncio.create_subprocess_exec(
            *machine.command(sys.executable, "-m", "freerun.cli.main", *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
            env=os.environ | dict(environment),
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _END_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def finished(process: Process, printed: Path) -> None:
    """Wait until the run is over, and well."""
    if code := await asyncio.wait_for(process.wait(), _RUN_S):
        raise FreerunError(f"a run ended with code {code}; what it said is in {printed}", printed.read_text()[-_TAIL:])


@dataclass
class MachineRun:
    """A run whose controller is on the first of the machines. The others have joined it, or will."""

    machines: Sequence[MachineNamespace]
    settings: Sequence[str]
    """What the run is to do: a file and overrides."""
    folder: Path
    """For the run's folder, the log and what is printed."""
    name: str
    nodes: dict[str, Process] = field(default_factory=dict)
    """By the machine's name."""
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _environment: dict[str, str] = field(default_factory=lambda: {KEY: token_hex(16)})
    _read: int = 0

    async def __aenter__(self) -> "MachineRun":
        for machine in self.machines[1:]:
            printed = self.folder / f"{self.name}-node-{machine.name}.txt"
            node = freerun(machine, "node", "--stay", "--join", self.where, log=printed, environment=self._environment)
            self.nodes[machine.name] = await self._stack.enter_async_context(node)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def where(self) -> str:
        return f"{self.machines[0].address}:{PORT}"

    @property
    def run(self) -> Path:
        return runs_in(self.folder) / self.name

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.jsonl"

    @property
    def printed(self) -> Path:
        return self.folder / f"{self.name}.txt"

    def train(self) -> AbstractAsyncContextManager[Process]:
        cluster = ["launcher=nodes", f"resources.machines={len(self.machines) - 1}", f"cluster.listen={self.where}"]
        return self._controller(
            "train",
            *self.settings,
            f"runs={runs_in(self.folder)}",
            f"name={self.name}",
            *cluster,
            RunLog.setting(self.log),
        )

    def resume(self, *overrides: str) -> AbstractAsyncContextManager[Process]:
        return self._controller("resume", str(self.run), *overrides)

    def _controller(self, *arguments: str) -> AbstractAsyncContextManager[Process]:
        return freerun(self.machines[0], *arguments, log=self.printed, environment=self._environment)

    async def seen(
        self, what: Callable[[dict[str, Any]], bool], process: Process, within_s: float, of: str
    ) -> dict[str, Any]:
        """The next line of the log that is so. Lines that were passed over are not looked at again."""
        until_s = time.monotonic() + within_s
        while time.monotonic() < until_s:
            ended = process.returncode is not None
            found = read_lines(self.log)
            for number in range(self._read, len(found)):
                self._read = number + 1
                if what(found[number]):
                    return found[number]
            if ended:
                break
            await asyncio.sleep(_LOOK_S)
        how = "not seen" if process.returncode is None else f"not seen before the run ended ({process.returncode})"
        raise FreerunError(f"{self.name}: {of}: {how} within {within_s:.0f} s", self.printed.read_text()[-_TAIL:])

    async def noted(self, said: Sequence[str], process: Process, within_s: float) -> float:
        """When a note with all of those words was made."""
        words = " … ".join(said)
        line = await self.seen(
            lambda one: all(word in one.get("note", "") for word in said), process, within_s, f"the note {words!r}"
        )
        return float(line["at_s"])

    async def said(self, words: str, process: Process, within_s: float) -> None:
        """Wait until the controller has printed that."""
        until_s = time.monotonic() + within_s
        while words not in self.printed.read_text():
            if time.monotonic() > until_s or process.returncode is not None:
                raise FreerunError(f"{self.name} has not said {words!r}", self.printed.read_text()[-_TAIL:])
            await asyncio.sleep(_LOOK_S)

    async def steps(self, count: int, process: Process, within_s: float) -> int:
        """Wait until so many more have been done; the number of the last."""
        step = 0
        for _ in range(count):
            step = (await self.seen(lambda line: "step" in line, process, within_s, f"{count} steps"))["step"]
        return step

    def who(self, kind: str) -> list[MachineNamespace]:
        """The machines on which processes of that kind run: engine or trainer."""
        return [one for one in self.machines if any(_kind(process) == kind for process in one.processes())]

    def left(self, machines: Sequence[MachineNamespace]) -> dict[str, list[int]]:
        """By machine: processes besides the nodes that were started there."""
        nodes = {node.pid for node in self.nodes.values()}
        found = {one.name: [process for process in one.processes() if process not in nodes] for one in machines}
        return {name: processes for name, processes in found.items() if processes}

    def last_words(self) -> str:
        """The last line that the controller printed."""
        return (self.printed.read_text().strip().splitlines() or [""])[-1]


def runs_in(folder: Path) -> Path:
    return folder / "runs"


def _kind(process: int) -> str | None:
    """What a process of a run is, or None if it is none."""
    with suppress(OSError):
        words = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").split("\0")
        if "freerun.run.child" in words:
            return words[words.index("freerun.run.child") + 1]
    return None


async def engine_ready_s(machine: MachineNamespace, within_s: float) -> float:
    """When an engine on that machine begins to listen: from then on it can be asked."""
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        for process in machine.processes():
            if _kind(process) == "engine" and _listens(process):
                return time.monotonic()
        await asyncio.sleep(_LOOK_S)
    raise FreerunError(f"no engine listened on machine {machine.name} within {within_s:.0f} s")


def _listens(process: int) -> bool:
    """Whether a socket of its own does: /proc has all sockets of its network, and numbers of those that it has."""
    with suppress(OSError):
        table = [line.split() for line in Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]]
        listening = {f"socket:[{fields[9]}]" for fields in table if fields[3] == _LISTENING}
        return any(os.readlink(held) in listening for held in Path(f"/proc/{process}/fd").iterdir())
    return False
