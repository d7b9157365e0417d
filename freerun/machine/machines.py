"""What a machine offers to a run: its processors, memory and GPUs, and an address at which others reach it."""

import socket
from dataclasses import dataclass, field

from freerun.machine.gpus import Gpu, visible_gpus
from freerun.machine.host import memory_bytes, processors

LOOPBACK = "127.0.0.1"
LOCAL = "local"
"""The name of the machine that the controller runs on, where a run uses that."""


@dataclass(frozen=True)
class Machine:
    name: str
    """Unique within a run: what notes and errors call it."""
    address: str
    """Where other machines of the run reach its processes; the loopback address where the run has one machine."""
    processors: int
    memory: int
    """Bytes."""
    gpus: list[Gpu] = field(default_factory=list)


def this_machine(name: str = LOCAL, address: str = LOOPBACK) -> Machine:
    return Machine(name, address, processors(), memory_bytes(), visible_gpus())


def host_name() -> str:
    """What this machine calls itself."""
    return socket.gethostname()
