"""The controller's side of a cluster: the machines that have joined, and what runs on each.

Consumes nodes that join and what they say; produces hosts to start processes on. A machine that is not heard from for
`LOST_S` is lost: everything that waits for its processes fails with MachineLost. When it comes back, or another
machine joins in its place, it has the same name, and nothing runs on it any more.
"""

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Self

from freerun.core import ConfigError, MachineLost
from freerun.core.clock import Clock
from freerun.machine.machines import Machine
from freerun.machine.nodes.agent import SCRATCH, own_packages
from freerun.machine.nodes.clock import NodeClock
from freerun.machine.nodes.key import run_key
from freerun.machine.nodes.link import Link, LinkLost, LinkRefused, admit, until_silent
from freerun.machine.nodes.messages import (
    HEARTBEAT_S,
    Answer,
    Ask,
    Ended,
    FromNode,
    Heartbeat,
    Leave,
    Offer,
    Printed,
    Ready,
    Refuse,
    Start,
    Welcome,
)
from freerun.machine.nodes.remote import RemoteChild
from freerun.machine.processes import Child

_OFFER_S = 10.0
_REACH_S = 3.0
_ANSWER_S = 60.0
_CLOCKS_APART_S = 60.0
_REFUSALS = 20
"""How many refusals are said aloud: a scanner of ports must not fill the notes."""


class NodeHost:
    """A machine that has joined, until it is lost."""

    scratch = SCRATCH

    def __init__(self, machine: Machine, offer: Offer, link: Link) -> None:
        self.machine, self.id = machine, offer.id
        self.packages = offer.packages
        """Versions, by name."""
        self._clock = NodeClock()
        self.clock: Clock = self._clock
        self._link = link
        self._heard_s = time.monotonic()
        self._children: dict[int, RemoteChild] = {}
        self._answers: dict[int, asyncio.Future[str]] = {}
        self._number = 0
        self.lost: asyncio.Future[MachineLost] = asyncio.get_running_loop().create_future()
        """Done when the machine is lost."""

    async def start(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        forks: bool = False,
    ) -> Child:
        if self.lost.done():
            raise self.lost.result()
        self._number += 1
        child = RemoteChild(name, self._number, self._link, log, self.machine.name)
        self._children[self._number] = child
        start = Start(
            id=self._number,
            name=name,
            module=module,
            arguments=list(arguments),
            environment=dict(environment),
            forks=forks,
        )
        self._link.send(start)
        return child

    async def ask(self, what: str, argument: str = "") -> str:
        """The machine's answer to a question of `questions.py`. What went wrong there is a ConfigError."""
        if self.lost.done():
            raise self.lost.result()
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        self._link.send(Ask(id=self._number, what=what, argument=argument))
        async with asyncio.timeout(_ANSWER_S):
            said: str = await answer
        if said.startswith("!"):
            raise ConfigError(f"machine {self.machine.name}: {what} {argument}: {said[1:]}")
        return said

    async def free_port(self) -> int:
        return int(await self.ask("free port"))

    async def serve(self) -> None:
        """Until the machine is lost; then everything that waits for it fails."""
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._beat())
                both.create_task(until_silent(lambda: self._heard_s, "nothing was heard from it"))
                both.create_task(self._receive())
        except BaseExceptionGroup as errors:
            self.lose(str(errors.exceptions[0]))
        finally:
            self._link.close()

    def leave(self, why: str) -> None:
        """The run is over."""
        with suppress(OSError):
            self._link.send(Leave(why=why))

    def refuse(self, why: str) -> None:
        """It cannot be used."""
        self._link.send(Refuse(why=why))

    def lose(self, why: str) -> None:
        """Everything that waits for it fails."""
        lost = MachineLost(f"machine {self.machine.name} ({self.machine.address}) is lost: {why}")
        if not self.lost.done():
            self.lost.set_result(lost)
        for child in self._children.values():
            child.lose(lost)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(MachineLost(lost.message))

    async def _beat(self) -> None:
        while True:
            self._link.send(Heartbeat(sent_s=time.monotonic()))
            await asyncio.sleep(HEARTBEAT_S)

    async def _receive(self) -> None:
        while True:
            message = await self._link.receive(FromNode)
            self._heard_s = time.monotonic()
            match message:
                case Heartbeat(sent_s=sent_s, echoed_s=float(echoed_s)):
                    self._clock.measured(echoed_s, sent_s, self._heard_s)
                case Ready(id=id, where=where) if id in self._children:
                    self._children[id].is_ready(where)
                case Printed(id=id, text=text) if id in self._children:
                    self._children[id].printed(text)
                case Ended(id=id) if id in self._children:
                    self._children.pop(id).has_ended(message)
                case Answer(id=id, value=value) if id in self._answers:
                    answer = self._answers.pop(id)
                    if not answer.done():
                        answer.set_result(value)


class Cluster:
    """The machines of a run. An async context manager: leaving it ends whatever runs on them."""

    def __init__(self, listen: str, key: bytes, note: Callable[[str], None]) -> None:
        self._where, self._key, self.note = _address(listen), key, note
        self.run = secrets.token_hex(8)
        self.key = run_key(key, self.run)
        """What the run's processes show each other."""
        self._hosts: dict[str, NodeHost] = {}
        """By name; some may be lost."""
        self._joining: set[str] = set()
        """Names of those that are being looked at."""
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused = 0

    async def __aenter__(self) -> Self:
        try:
            self._server = await asyncio.start_server(self._connected, *self._where)
        except OSError as error:
            where = f"{self._where[0]}:{self._where[1]}"
            why = os.strerror(error.errno) if error.errno else str(error)
            raise ConfigError(
                f"cannot listen on {where} ({why}): set cluster.listen to a free HOST:PORT of this machine"
            ) from None
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._server.close()
        for host in self.present:
            host.leave("the run has ended" if kind is None else "the run has ended with an error")
        await asyncio.sleep(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def listens_at(self) -> str:
        return self._where[0]

    @property
    def port(self) -> int:
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def present(self) -> list[NodeHost]:
        """Those that are there, in the order in which they first joined."""
        return [host for host in self._hosts.values() if not host.lost.done()]

    async def joined(self, count: int, wait_s: float) -> list[NodeHost]:
        """Wait for so many machines."""
        try:
            async with asyncio.timeout(wait_s), self._changed:
                await self._changed.wait_for(lambda: len(self.present) >= count)
        except TimeoutError:
            here = ", ".join(host.machine.name for host in self.present) or "none"
            raise ConfigError(
                f"resources.machines is {count}, and after {wait_s:.0f} s {len(self.present)} have joined ({here}): "
                f"run `freerun node --join HOST:{self.port}` on each, with this run's key"
            ) from None
        return self.present[:count]

    async def host(self, name: str) -> NodeHost:
        """The machine of that name, as soon as it is there."""
        async with self._changed:
            await self._changed.wait_for(lambda: name in self._hosts and not self._hosts[name].lost.done())
        return self._hosts[name]

    async def newcomer(self, known: Collection[str]) -> NodeHost:
        """The next machine that is there and is none of those."""

        def others() -> list[NodeHost]:
            return [host for host in self.present if host.machine.name not in known]

        async with self._changed:
            await self._changed.wait_for(lambda: bool(others()))
        return others()[0]

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._admit(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One node, from its greeting until it is lost."""
        try:
            await self._serve(await admit(reader, writer, self._key, metadata.version("freerun")))
        except (LinkRefused, LinkLost, MachineLost, OSError, TimeoutError) as error:
            self._refused += 1
            if self._refused <= _REFUSALS:
                self.note(f"a machine at {_peer(writer)} was not admitted: {error or 'it did not answer'}")
        finally:
            writer.transport.abort()

    async def _serve(self, link: Link) -> None:
        async with asyncio.timeout(_OFFER_S):
            offer: Offer = await link.receive(Offer)
        machine = self._machine(offer)
        host = NodeHost(machine, offer, link)
        link.send(Welcome(name=machine.name, run=self.run))
        serving = asyncio.create_task(host.serve())
        self._joining.add(machine.name)
        try:
            await self._check(host, offer)
            async with self._changed:
                returned = machine.name in self._hosts
                self._hosts[machine.name] = host
                self._changed.notify_all()
            self._joining.discard(machine.name)
            self.note(f"machine {machine.name} ({_described(machine)}) {'is back' if returned else 'has joined'}")
            await serving
        finally:
            self._joining.discard(machine.name)
            serving.cancel()
        if host.lost.done():
            self.note(host.lost.result().message)

    async def _check(self, host: NodeHost, offer: Offer) -> None:
        """What keeps a machine from being used is told to it, too."""
        try:
            await self._check_reachable(host)
        except (ConfigError, TimeoutError) as error:
            host.refuse(str(error))
            raise LinkRefused(str(error)) from None
        self._check_packages(host.machine, offer)

    def _machine(self, offer: Offer) -> Machine:
        """With a name: its old one if it was here before, that of a lost one it can replace, or a new one. A node that
        is here and joins anew has lost its connection before we have."""
        for host in self.present:
            if host.id == offer.id:
                host.lose("it has joined anew")
        vacant = [host for name, host in self._hosts.items() if host.lost.done() and name not in self._joining]
        same = [host for host in vacant if host.id == offer.id] or [
            host for host in vacant if len(host.machine.gpus) <= len(offer.gpus)
        ]
        name = same[0].machine.name if same else self._new_name(offer.name)
        return Machine(name, offer.address, offer.processors, offer.memory, offer.gpus)

    def _new_name(self, wanted: str) -> str:
        name, number = wanted, 1
        while name in self._hosts or name in self._joining:
            number += 1
            name = f"{wanted}-{number}"
        return name

    async def _check_reachable(self, host: NodeHost) -> None:
        machine = host.machine
        try:
            port = await host.ask("open port")
        except ConfigError:
            raise ConfigError(
                f"machine {machine.name} says that it is at {machine.address}, where it cannot listen: give it one of "
                "its own addresses by `freerun node --address`"
            ) from None
        try:
            async with asyncio.timeout(_REACH_S):
                _, writer = await asyncio.open_connection(machine.address, int(port))
            writer.close()
        except (OSError, TimeoutError):
            raise ConfigError(
                f"machine {machine.name} says that it is at {machine.address}, which the controller cannot reach: "
                "give it another one of its addresses by `freerun node --address`, or open its ports"
            ) from None

    def _check_packages(self, machine: Machine, offer: Offer) -> None:
        """What differs and may be meant so is a note."""
        apart_s = offer.clock_s - time.time()
        if abs(apart_s) > _CLOCKS_APART_S:
            ahead = "ahead of" if apart_s > 0 else "behind"
            self.note(
                f"the clock of machine {machine.name} is {abs(apart_s):.0f} s {ahead} this one's: set both by NTP, or "
                "times in logs and shared folders will mislead"
            )
        for package in ("torch", "transformers"):
            theirs, ours = offer.packages.get(package), own_packages().get(package)
            if theirs and ours and theirs.split("+")[0] != ours.split("+")[0]:
                self.note(f"machine {machine.name} has {package} {theirs}, this one {ours}: install the same on both")


def _address(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit():
        raise ConfigError(f"cluster.listen is {listen!r}: it is HOST:PORT, such as 0.0.0.0:7411")
    return host.strip("[]") or "0.0.0.0", int(port)


def _peer(writer: asyncio.StreamWriter) -> str:
    found = writer.get_extra_info("peername")
    return str(found[0]) if found else "an address that is gone"


def _described(machine: Machine) -> str:
    gpus = f", {len(machine.gpus)} GPU(s)" if machine.gpus else ""
    return f"{machine.address}: {machine.processors} processors, {machine.memory / 2**30:.0f} GiB{gpus}"
