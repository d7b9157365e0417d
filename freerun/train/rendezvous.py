"""How the ranks of a trainer find each other, on one machine or on several.

`tcp://HOST:PORT` is an address of the first rank's machine: it listens there and nowhere else (torch by itself would
listen on every interface). `file://PATH` is a file that nobody has used before, on a folder that all of them see.
"""

import os
import socket
from datetime import timedelta
from urllib.parse import urlsplit

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from freerun.core import TrainerError
from freerun.machine.interfaces import interface_of

PATIENCE = timedelta(minutes=30)
"""A rank that is silent for so long in the middle of something has hung; one that died is noticed by the launcher."""
_MEETING = timedelta(minutes=5)
"""Ranks are started together: who has not come by then does not reach the others."""


def meet(rank: int, size: int, url: str, device: str, host: str) -> None:
    """Wait for the others. Everything that ranks send each other goes by the interface that has the address `host`."""
    interface = interface_of(host)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")  # with "=" it is the name, not a beginning of names
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    if not url.startswith("tcp://"):
        dist.init_process_group(backend, init_method=url, rank=rank, world_size=size, timeout=PATIENCE)
        return
    dist.init_process_group(backend, store=_store(rank, size, url), rank=rank, world_size=size, timeout=PATIENCE)


def _store(rank: int, size: int, url: str) -> TCPStore:
    where = urlsplit(url)
    if where.hostname is None or where.port is None:
        raise TrainerError(f"ranks cannot meet at {url}: it should be tcp://HOST:PORT")
    listening = _listening(where.hostname, where.port).detach() if rank == 0 else None
    try:
        return TCPStore(
            where.hostname, where.port, size, is_master=rank == 0, timeout=_MEETING, master_listen_fd=listening
        )
    except dist.DistError as error:
        raise TrainerError(
            f"rank {rank} did not meet the others at {url}: see whether this machine reaches that address", str(error)
        ) from None


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise TrainerError(
            f"the trainer's first rank cannot listen at {host}:{port} ({error}): choose another port, or an address "
            "of its machine"
        ) from None
