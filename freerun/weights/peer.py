"""A connection over which slots are pulled: both sides prove that they know the run's key, then ranges of bytes are
asked for and sent. Nothing is pickled.

    server → client   16 random bytes
    client → server   16 random bytes | HMAC of both
    server → client   HMAC of both, the other way round
    then, again and again:
    client → server   what (the slot, or what changed since the version before) | version | offset | length
    server → client   status | the version held | that many bytes, if the status is SENT

A side that makes no progress for `PATIENCE_S` is given up. The kernel does the waiting (SO_RCVTIMEO, SO_SNDTIMEO), so
that a thread moves megabytes a call and leaves Python alone meanwhile.
"""

import hmac
import secrets
import socket
import struct
from contextlib import suppress
from enum import IntEnum
from types import TracebackType

from freerun.core import Version, WeightsError

PATIENCE_S = 5.0
_NONCE = 16
_PROOF = 32
_REQUEST = struct.Struct("<BqQQ")
_REPLY = struct.Struct("<Bq")


class Kind(IntEnum):
    WHOLE = 0
    DELTA = 1


class Status(IntEnum):
    SENT = 0
    GONE = 1
    """Another version is there, or none; nothing follows."""
    WAIT = 2
    """It is being made; another reply follows."""


class Vanished(WeightsError):
    """The other side closed the connection, reset it, or made no progress."""


class Closed(Vanished):
    """It closed the connection, and may have had a reason."""


class Peer:
    """One side of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        connection.settimeout(None)
        seconds, rest = divmod(PATIENCE_S, 1)
        patience = struct.pack("@ll", int(seconds), int(rest * 1e6))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def send(self, content: "bytes | memoryview[int]") -> None:
        """All of it. A side that takes less than that in `PATIENCE_S`, and something, is slow and not gone."""
        left = memoryview(content)
        try:
            while left:
                left = left[self._socket.send(left) :]
        except BlockingIOError:
            raise Vanished(f"took nothing for {PATIENCE_S:g} s") from None
        except OSError as error:
            raise Vanished(f"is gone ({error.strerror or error})") from None

    def receive_into(self, room: "memoryview[int]") -> None:
        while room:
            try:
                got = self._socket.recv_into(room, min(len(room), 1 << 22), socket.MSG_WAITALL)
            except BlockingIOError:
                raise Vanished(f"sent nothing for {PATIENCE_S:g} s") from None
            except OSError as error:
                raise Vanished(f"is gone ({error.strerror or error})") from None
            if not got:
                raise Closed("closed the connection")
            room = room[got:]

    def receive(self, length: int) -> bytes:
        content = bytearray(length)
        self.receive_into(memoryview(content))
        return bytes(content)

    def ask(self, what: Kind, version: Version, offset: int, length: int) -> tuple[Status, Version]:
        """What is said before the bytes come."""
        self.send(_REQUEST.pack(what, version, offset, length))
        status, held = Status.WAIT, version
        while status is Status.WAIT:
            number, held = _REPLY.unpack(self.receive(_REPLY.size))
            status = Status(number)
        return status, held

    def asked(self) -> tuple[Kind, Version, int, int]:
        what, version, offset, length = _REQUEST.unpack(self.receive(_REQUEST.size))
        return Kind(what), version, offset, length

    def reply(self, status: Status, held: Version) -> None:
        self.send(_REPLY.pack(status, held))


def prove_as_client(peer: Peer, key: str) -> None:
    theirs, ours = peer.receive(_NONCE), secrets.token_bytes(_NONCE)
    peer.send(ours + _proof(key, b"client", theirs, ours))
    try:
        proof = peer.receive(_PROOF)
    except Closed:
        raise WeightsError("it does not accept this run's key, or is ending") from None
    if not hmac.compare_digest(proof, _proof(key, b"server", theirs, ours)):
        raise WeightsError("it does not know this run's key")


def prove_as_server(peer: Peer, key: str) -> bool:
    """Whether the client knows the key. One that does not is told nothing."""
    ours = secrets.token_bytes(_NONCE)
    peer.send(ours)
    theirs, proof = peer.receive(_NONCE), peer.receive(_PROOF)
    if not hmac.compare_digest(proof, _proof(key, b"client", ours, theirs)):
        return False
    peer.send(_proof(key, b"server", ours, theirs))
    return True


def _proof(key: str, side: bytes, servers: bytes, clients: bytes) -> bytes:
    return hmac.digest(key.encode(), side + servers + clients, "sha256")
