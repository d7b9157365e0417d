"""The socket between controller and trainer. On one machine it is a file; between machines it is TCP, encrypted by
CURVE with a key pair that both sides work out from the run's key.

The trainer is CURVE's server. Whoever does not know its public key gets nothing through, not even an answer; and that
key is as secret as the run's, from which alone it can be had.
"""

from hashlib import blake2b
from typing import Any

import zmq
from zmq.utils import z85

from freerun.core import TrainerError
from freerun.train.messages import AT_ONCE

_QUIET_S = 30
"""A connection that is silent for so long is probed, so that nothing on the way forgets it: steps may take hours."""


def listening(socket: "zmq.Socket[Any]", endpoint: str, key: str | None) -> str:
    """Have the trainer's socket listen there; `tcp://HOST:*` takes a free port. Returns where it can be reached."""
    _prepare(socket, endpoint)
    if _between_machines(endpoint):
        socket.curve_server = True
        socket.curve_secretkey = _keys(endpoint, key)[1]
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise TrainerError(f"the trainer cannot listen at {endpoint}: {error.strerror}") from None
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def connect(socket: "zmq.Socket[Any]", endpoint: str, key: str | None) -> None:
    """Connect the controller's socket, at once or when the trainer is there."""
    _prepare(socket, endpoint)
    if _between_machines(endpoint):
        socket.curve_serverkey = _keys(endpoint, key)[0]
        socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
    socket.connect(endpoint)


def _prepare(socket: "zmq.Socket[Any]", endpoint: str) -> None:
    socket.set_hwm(AT_ONCE)
    socket.setsockopt(zmq.IPV6, "[" in endpoint)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, _QUIET_S)


def _between_machines(endpoint: str) -> bool:
    return endpoint.startswith("tcp://")


def _keys(endpoint: str, key: str | None) -> tuple[bytes, bytes]:
    """The trainer's, public and secret."""
    if not key:
        raise TrainerError(f"a trainer at {endpoint} can be reached by others: give it the run's key")
    secret = z85.encode(blake2b(key.encode(), digest_size=32, person=b"freerun trainer").digest())
    return zmq.curve_public(secret), secret
