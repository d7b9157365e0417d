"""What a machine offers to a run: its processors, memory and GPUs, and an address at which others reach it."""

import ipaddress
import socket
from dataclasses import dataclass, field

from freerun.machine.gpus import Gpu, visible_gpus
from freerun.machine.host import memory_bytes, processors

LOOPBACK = "127.0.0.1"
LOCAL = "local"
"""The name of the machine that the controller runs on, where a run uses that."""


def names_this_machine(host: str) -> bool:
    """Whether what listens at that address, or name, can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


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
