"""The machines of a run, by its launcher: this one, those that join by themselves, or those of a Ray cluster.

Ray only starts a node on each of its machines; from then on both are the same.
"""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from secrets import token_hex
from typing import Protocol

from freerun.config.tree import RunConfig
from freerun.machine.machines import LOCAL, Machine
from freerun.machine.nodes.cluster import Cluster
from freerun.machine.nodes.key import KEY, cluster_key
from freerun.machine.processes import Host, LocalHost
from freerun.machine.scratch import scratch_folder


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


class JoinedMachines:
    """Processes run on machines that have joined; this one has the controller, and what drives engines by URL."""

    apart = True

    def __init__(self, cluster: Cluster, config: RunConfig, scratch: Path) -> None:
        self._cluster, self._config = cluster, config
        self.key, self.scratch = cluster.key, scratch
        self._local = LocalHost(str(scratch))

    def tell(self, note: Callable[[str], None]) -> None:
        self._cluster.note = note

    async def machines(self) -> list[Machine]:
        hosts = await self._cluster.joined(self._config.resources.machines, self._config.cluster.wait_s)
        return [host.machine for host in hosts]

    async def host(self, name: str) -> Host:
        return self._local if name == LOCAL else await self._cluster.host(name)


@asynccontextmanager
async def hosts_of(config: RunConfig, note: Callable[[str], None]) -> AsyncIterator[Hosts]:
    async with AsyncExitStack() as stack:
        scratch = stack.enter_context(scratch_folder())
        if config.launcher == "local":
            yield ThisMachine(scratch)
            return
        key = cluster_key(config.cluster.key_file)
        cluster = await stack.enter_async_context(Cluster(config.cluster.listen, key, note))
        os.environ.pop(KEY, None)  # judges and agents, which are others' code, need not know it
        yield JoinedMachines(cluster, config, scratch)
