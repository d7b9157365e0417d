"""`freerun node`: this machine offers itself to a run on another one."""

import os
import signal
from importlib import metadata

from rich.console import Console

from freerun.core import ConfigError
from freerun.machine.machines import host_name
from freerun.machine.nodes.agent import Join, serve
from freerun.machine.nodes.key import cluster_key
from freerun.machine.parent import when_parent_ends


def end_with_input() -> None:
    """Stop as by Ctrl-C when whoever started this process, and holds its standard input, has ended."""
    when_parent_ends(lambda: os.kill(os.getpid(), signal.SIGTERM))


async def join_run(
    controller: str, key_file: str | None, name: str | None, address: str | None, wait_s: float, stays: bool
) -> None:
    """Until the run is over."""
    host, colon, port = controller.rpartition(":")
    if not colon or not host or not port.isdigit():
        raise ConfigError(f"--join {controller}: it is HOST:PORT, those of cluster.listen on the controller's machine")
    key, version = cluster_key(key_file), metadata.version("freerun")
    console = Console(highlight=False, stderr=True)
    joins = Join(host.strip("[]"), int(port), key, version, name or host_name(), address, wait_s, stays)
    await serve(joins, lambda said: console.print(said, markup=False, soft_wrap=True))
