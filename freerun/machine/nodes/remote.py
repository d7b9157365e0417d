"""A process on another machine, as the controller sees it."""

import asyncio
from pathlib import Path

import msgspec

from freerun.core import MachineLost, ProcessDied
from freerun.machine.nodes.link import Link
from freerun.machine.nodes.messages import End, Ended
from freerun.machine.parent import Refusal
from freerun.machine.processes import death

_END_S = 5.0


class RemoteChild:
    """See `processes.Child`."""

    def __init__(self, name: str, id: int, link: Link, log: Path, machine: str) -> None:
        self.name, self._id, self._link, self._log, self._machine = name, id, link, log, machine
        self._where = ""
        self._ended: Ended | None = None
        self._lost: MachineLost | None = None
        self._news = asyncio.Event()
        self._gone = asyncio.Event()

    @property
    def returncode(self) -> int | None:
        if self._ended:
            return self._ended.code
        return 1 if self._lost else None

    async def ready(self) -> str:
        await self._news.wait()
        if self._where:
            return self._where
        await self._gone.wait()
        if self._ended and self._ended.refusal:
            raise msgspec.json.decode(self._ended.refusal, type=Refusal).error()
        raise self.died()

    async def wait(self) -> None:
        await self._gone.wait()

    def died(self) -> ProcessDied:
        if self._ended is None:
            return MachineLost(self._lost.message) if self._lost else MachineLost(f"the {self.name} process is lost")
        return death(f"{self.name} (on {self._machine})", self._ended.code, self._ended.tail, self._log)

    async def end(self) -> None:
        if self._gone.is_set():
            return
        self._link.send(End(id=self._id))
        try:
            async with asyncio.timeout(_END_S):
                await self._gone.wait()
        except TimeoutError:
            pass  # its machine ends it, or is lost, which ends it too

    def is_ready(self, where: str) -> None:
        self._where = where
        self._news.set()

    def printed(self, text: bytes) -> None:
        with self._log.open("ab") as log:
            log.write(text)

    def has_ended(self, ended: Ended) -> None:
        self._ended = ended
        self._news.set()
        self._gone.set()

    def lose(self, lost: MachineLost) -> None:
        self._lost = lost
        self._news.set()
        self._gone.set()
