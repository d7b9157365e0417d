"""`freerun node --join HOST:PORT`: offers this machine to a run, and runs what the controller asks for.

Consumes the controller's messages; produces processes, their logs and their ends. It and the controller tell each other
every second that they are there. When the controller is not heard from, whatever the reason, all that runs here ends,
and the node tries to join again: the run may have lost it and still need it.
"""

import asyncio
import platform
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import msgspec

from freerun.core import FreerunError, ProcessDied
from freerun.machine.gpus import visible_gpus
from freerun.machine.host import memory_bytes, processors
from freerun.machine.nodes.key import run_key
from freerun.machine.nodes.link import Link, LinkLost, LinkRefused, join, until_silent
from freerun.machine.nodes.messages import (
    HEARTBEAT_S,
    LOST_S,
    Answer,
    Ask,
    End,
    Ended,
    FromController,
    Heartbeat,
    Leave,
    Offer,
    Printed,
    Ready,
    Refuse,
    Start,
    Welcome,
)
from freerun.machine.nodes.questions import Questions
from freerun.machine.parent import PULSE_S, RUN_KEY, Refusal
from freerun.machine.processes import ChildProcess
from freerun.machine.scratch import scratch_folder

_AGAIN_S = 0.5
"""The pause before the controller is tried again."""
_CONNECT_S = 5.0
_A_TICK = 256 * 1024
"""Bytes of a log that are sent at a time."""
_PACKAGES = ("freerun", "torch", "transformers")
SCRATCH = "{scratch}"
"""What stands for this machine's folder in shared memory in the controller's messages."""


@dataclass(frozen=True)
class Join:
    """Whom to join, and as whom."""

    host: str
    port: int
    key: bytes
    version: str
    """Freerun's."""
    name: str
    address: str | None
    """At which others reach this machine; None: the one that the controller is reached from."""
    wait_s: float
    """How long to try while there is no controller."""
    stays: bool = False
    """Whether to wait for the next run when one is over."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


class RunOver(Exception):
    """The controller has said that the run is over, and why."""


async def serve(joins: Join, say: Callable[[str], None]) -> None:
    """Until the run is over. Raises LinkRefused when the controller does not want this machine, or is not there."""
    tried_until = time.monotonic() + joins.wait_s
    while True:
        try:
            link = await _connected(joins, tried_until)
            say(f"joined the controller at {joins.host}:{joins.port}")
            with scratch_folder() as scratch:
                await Node(link, joins, scratch).serve(say)
        except RunOver as over:
            say(str(over))
            if not joins.stays:
                return
        except LinkLost as lost:
            say(f"lost the controller ({lost}): what ran here has ended; joining again")
        if (task := asyncio.current_task()) and task.cancelling():  # while it failed: a task group forgets that
            raise asyncio.CancelledError
        tried_until = time.monotonic() + joins.wait_s


async def _connected(joins: Join, until_s: float) -> Link:
    """Tries again while nobody is there; whoever is there and refuses is final."""
    while True:
        try:
            async with asyncio.timeout(_CONNECT_S):
                reader, writer = await asyncio.open_connection(joins.host, joins.port)
            return await join(reader, writer, joins.key, joins.version)
        except (OSError, TimeoutError) as error:
            if time.monotonic() > until_s:
                why = getattr(error, "strerror", None) or str(error) or "no answer"
                raise LinkRefused(
                    f"no controller at {joins.host}:{joins.port} for {joins.wait_s:.0f} s ({why}): start the run "
                    "there, or look at cluster.listen"
                ) from None
        await asyncio.sleep(_AGAIN_S)


class Node:
    """One stay with a controller, from the offer to the loss of the connection or the end of the run."""

    def __init__(self, link: Link, joins: Join, scratch: Path) -> None:
        self._link, self._joins, self._scratch = link, joins, scratch
        self._children: dict[int, ChildProcess] = {}
        self._heard_s = time.monotonic()
        self._run_key = ""
        self._questions = Questions(self.address)

    @property
    def address(self) -> str:
        return self._joins.address or self._link.own_address

    async def serve(self, say: Callable[[str], None]) -> None:
        """Raises RunOver, LinkLost or LinkRefused, when everything that it started has ended."""
        self._link.send(self._offer())
        try:
            async with asyncio.TaskGroup() as going:
                self._going = going
                going.create_task(self._beat())
                going.create_task(until_silent(lambda: self._heard_s, "nothing was heard"))
                await self._receive(say)
        except BaseExceptionGroup as errors:
            raise _cause(errors) from None
        finally:
            self._link.close()
            self._questions.close()
            await asyncio.gather(*(child.end() for child in self._children.values()))

    def _offer(self) -> Offer:
        joins = self._joins
        return Offer(
            id=joins.id,
            name=joins.name,
            address=self.address,
            processors=processors(),
            memory=memory_bytes(),
            gpus=visible_gpus(),
            packages=own_packages(),
            clock_s=time.time(),
        )

    async def _beat(self) -> None:
        """Say that we are here, to the controller and to our own processes."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            self._link.send(Heartbeat(sent_s=time.monotonic()))
            for child in self._children.values():
                child.pulse()

    async def _receive(self, say: Callable[[str], None]) -> None:
        while True:
            message = await self._link.receive(FromController)
            self._heard_s = time.monotonic()
            match message:
                case Heartbeat(sent_s=sent_s):
                    self._link.send(Heartbeat(sent_s=self._heard_s, echoed_s=sent_s))
                case Welcome(name=name, run=run):
                    self._run_key = run_key(self._joins.key, run)
                    say(f"this machine is {name} of the run")
                case Refuse(why=why):
                    raise LinkRefused(why)
                case Leave(why=why):
                    raise RunOver(why)
                case Start():
                    self._going.create_task(self._run(message))
                case End(id=id) if id in self._children:
                    self._going.create_task(self._children[id].end())
                case Ask(id=id, what=what, argument=argument):
                    self._going.create_task(self._answer(id, what, argument))

    async def _answer(self, id: int, what: str, argument: str) -> None:
        self._link.send(Answer(id=id, value=await self._questions.answer(what, argument)))

    async def _run(self, start: Start) -> None:
        """A process from its beginning to its end; its log follows it."""
        log = self._scratch / f"{start.id}.log"
        log.touch()
        here = [argument.replace(SCRATCH, str(self._scratch)) for argument in start.arguments]
        environment = {**start.environment, RUN_KEY: self._run_key, PULSE_S: str(2 * LOST_S)}
        child = await ChildProcess.start_part(start.name, start.module, here, environment, log, start.forks)
        self._children[start.id] = child
        following = asyncio.create_task(self._follow(start.id, log))
        refusal = ""
        try:
            self._link.send(Ready(id=start.id, where=await child.ready()))
        except ProcessDied:
            pass
        except FreerunError as error:
            refusal = msgspec.json.encode(Refusal(type(error).__name__, error.message, error.detail)).decode()
        code = await child.process.wait()
        del self._children[start.id]
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        self._link.send(Ended(id=start.id, code=code, tail=child.log_tail(), refusal=refusal))
        await child.end()

    async def _follow(self, id: int, log: Path) -> None:
        """Send what is new in the log; the rest of it in the end."""
        with log.open("rb") as written:
            try:
                while True:
                    await asyncio.sleep(HEARTBEAT_S / 2)
                    self._print(id, written.read(_A_TICK))
            finally:
                self._print(id, written.read(_A_TICK))

    def _print(self, id: int, text: bytes) -> None:
        if text:
            self._link.send(Printed(id=id, text=text))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def own_packages() -> dict[str, str]:
    """The versions, on this machine, of what must agree."""
    return {name: found for name in _PACKAGES if (found := _version(name))} | {"python": platform.python_version()}


def _cause(errors: BaseExceptionGroup) -> BaseException:
    """What ended the stay: the end of the run before anything that came of it."""
    flat: list[BaseException] = []
    for error in errors.exceptions:
        flat += [_cause(error)] if isinstance(error, BaseExceptionGroup) else [error]
    return min(flat, key=lambda error: not isinstance(error, RunOver | LinkRefused))
