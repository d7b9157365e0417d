"""Where a server of ours listens."""

import ipaddress
import socket
from dataclasses import dataclass

from freerun.core import ConfigError

KEEP_ALIVE_S = 3600
"""Whoever closes an idle connection must not be the one who answers: the next request may be on its way already."""


@dataclass(slots=True, frozen=True)
class Where:
    """Where to listen."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: any free one."""


def listen(where: Where) -> socket.socket:
    """A bound socket, before the model is loaded: a port that is taken is found at once. It names its protocol, since
    asyncio sends without delay (TCP_NODELAY) only on sockets that say they are TCP."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {where.host}:{where.port}: {error}") from None
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        listening.close()
        raise ConfigError(f"cannot listen on {where.host}:{where.port}: {error.strerror}") from None
    return listening


def url_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(listening: socket.socket) -> bool:
    """Whether only this machine reaches it."""
    return ipaddress.ip_address(listening.getsockname()[0]).is_loopback
