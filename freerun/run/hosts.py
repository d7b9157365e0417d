"""The machines of a run, by its launcher: this one, those that join by themselves, or those of a Ray cluster.

Ray only starts a node on each of its machines; from then on both are the same.
"""

import asyncio
import os
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from secrets import token_hex
from typing import Protocol

import msgspec

from freerun.config.tree import RunConfig
from freerun.control.waiting import background
from freerun.core import ConfigError
from freerun.machine.machines import LOCAL, Machine
from freerun.machine.nodes.cluster import Cluster
from freerun.machine.nodes.key import KEY, cluster_key
from freerun.machine.processes import ChildProcess, Host, LocalHost
from freerun.machine.scratch import scratch_folder
from freerun.run.ray import RaySettings

_RAY_CONNECTS_S, _RAY_ENDS_S = 60.0, 10.0
"""How long Ray may take to answer, beside the time that it waits for machines; and to end what it has started."""


class Hosts(Protocol):
    """Where a run's processes can be started."""

    key: str
    """What the run's processes show each other."""
    scratch: Path
    """A folder in this machine's shared memory, private to the run."""
    apart: bool
    """Whether processes are on machines that can be lost while this one goes on."""

    def tell(self, note: Callable[[str], None]) -> None:
        """Who is to be told of machines that come and go."""
        ...

    async def machines(self) -> list[Machine]:
        """All that the run wants, as soon as they are there."""
        ...

    async def host(self, name: str) -> Host:
        """The machine of that name, as soon as it is there."""
        ...

    def newcomers(self) -> AsyncIterator[Machine]:
        """Machines that join later, or are more than the run wants."""
        ...


class ThisMachine:
    """Everything runs here."""

    apart = False

    def __init__(self, scratch: Path) -> None:
        self.key, self.scratch = token_hex(), scratch
        self._host = LocalHost(str(scratch))

    def tell(self, note: Callable[[str], None]) -> None: ...

    async def machines(self) -> list[Machine]:
        return [self._host.machine]

    async def host(self, name: str) -> Host:
        return self._host

    async def newcomers(self) -> AsyncIterator[Machine]:
        return
        yield


class JoinedMachines:
    """Processes run on machines that have joined; this one has the controller, and what drives engines by URL."""

    apart = True

    def __init__(self, cluster: Cluster, config: RunConfig, scratch: Path) -> None:
        self._cluster, self._config = cluster, config
        self.key, self.scratch = cluster.key, scratch
        self._local = LocalHost(str(scratch))
        self._known: set[str] = set()
        """Machines that have something to do."""

    def tell(self, note: Callable[[str], None]) -> None:
        self._cluster.note = note

    async def machines(self) -> list[Machine]:
        hosts = await self._cluster.joined(self._config.resources.machines, self._config.cluster.wait_s)
        self._known = {host.machine.name for host in hosts}
        return [host.machine for host in hosts]

    async def newcomers(self) -> AsyncIterator[Machine]:
        while True:
            machine = (await self._cluster.newcomer(self._known)).machine
            self._known.add(machine.name)
            yield machine

    async def host(self, name: str) -> Host:
        return self._local if name == LOCAL else await self._cluster.host(name)


@asynccontextmanager
async def hosts_of(config: RunConfig, note: Callable[[str], None]) -> AsyncIterator[Hosts]:
    async with AsyncExitStack() as stack:
        scratch = stack.enter_context(scratch_folder())
        if config.launcher == "local":
            yield ThisMachine(scratch)
            return
        key = _key(config)
        cluster = await stack.enter_async_context(Cluster(config.cluster.listen, key, note))
        os.environ.pop(KEY, None)  # judges and agents, which are others' code, need not know it
        if config.launcher == "ray":
            await stack.enter_async_context(_nodes_by_ray(config, cluster, key, scratch))
        yield JoinedMachines(cluster, config, scratch)


def _key(config: RunConfig) -> bytes:
    """Machines that Ray starts nodes on are told the key by it, so that the run can make one up."""
    told = config.cluster.key_file or os.environ.get(KEY)
    return cluster_key(config.cluster.key_file) if told or config.launcher != "ray" else token_hex().encode()


@asynccontextmanager
async def _nodes_by_ray(config: RunConfig, cluster: Cluster, key: bytes, scratch: Path) -> AsyncIterator[None]:
    """Have Ray start a node on each of its machines; its process fails the block with its cause, and ends with it."""
    anywhere = cluster.listens_at in ("0.0.0.0", "::")
    settings = RaySettings(
        config.resources.machines,
        config.resources.gpus,
        "" if anywhere else cluster.listens_at,
        cluster.port,
        config.cluster.wait_s,
    )
    child = await ChildProcess.start(
        *("ray", "freerun.run.ray", msgspec.json.encode(settings).decode()),
        environment={KEY: key.decode()},
        log=scratch / "ray.log",
        stdout=PIPE,
        announces=True,
    )
    noting = asyncio.create_task(_note_lines(child, cluster))
    try:
        await _answered(child, config.cluster.wait_s + _RAY_CONNECTS_S)
        async with background(_fail_with(child)):
            yield
    finally:
        cluster.note = _nothing  # of its nodes' ends
        await child.end(grace_s=_RAY_ENDS_S)
        await noting


async def _answered(child: ChildProcess, within_s: float) -> None:
    try:
        async with asyncio.timeout(within_s):
            await child.ready()
    except TimeoutError:
        raise ConfigError(
            f"Ray did not answer in {within_s:.0f} s: see `ray status` on this machine, and set RAY_ADDRESS",
            child.log_tail(),
        ) from None


async def _note_lines(child: ChildProcess, cluster: Cluster) -> None:
    assert child.process.stdout is not None
    async for line in child.process.stdout:
        cluster.note(line.decode().strip())


async def _fail_with(child: ChildProcess) -> None:
    await child.wait()
    raise child.died()


def _nothing(note: str) -> None: ...
