"""One connection between the controller and a node: both prove that they know the key, then exchange messages.

The key never travels. Each side sends a random number, and shows that it can sign both; what follows is signed by a
key that is made of them, and numbered, so that nobody between the two can add, change, repeat or leave out a message.
Nothing is encrypted: who must hide what is sent puts the machines into a private network.

Whoever connects and does not know the key is told so, has seconds for it, and can make this side hold a few kilobytes.

    frame:  length (4 bytes) | signature (16 bytes) | message in msgpack
"""

import asyncio
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from freerun.core import ConfigError, FreerunError
from freerun.machine.nodes.messages import LOST_S

T = TypeVar("T")

PROTOCOL = 1
"""Rises whenever messages change. Both sides must speak the same."""
_MAGIC = b"freerun node"
_SIGNATURE = 16
_GREETING = 4096
"""Bytes that a stranger's message may have."""
_MOST = 64 * 2**20
_HANDSHAKE_S = 10.0


class LinkRefused(ConfigError):
    """The other side cannot be worked with. One line that names the fix."""


class LinkLost(FreerunError):
    """The connection has ended, or what came over it cannot be the other side's."""


@dataclass(slots=True, frozen=True)
class Greeting:
    """What each side says first. The words of the controller's are signed."""

    magic: bytes
    protocol: int
    version: str
    """Freerun's."""
    nonce: bytes
    proof: bytes = b""


class Link:
    """Messages over a connection whose other side has proved that it knows the key."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, session: bytes, ours: bytes, theirs: bytes
    ) -> None:
        self._reader, self._writer, self._session = reader, writer, session
        self._names = ours, theirs
        self._sent = self._received = 0

    @property
    def own_address(self) -> str:
        """The address of this machine, as the other one sees it."""
        return str(self._writer.get_extra_info("sockname")[0])

    @property
    def peer_address(self) -> str:
        return str(self._writer.get_extra_info("peername")[0])

    def send(self, message: Any) -> None:
        """It goes out as the connection allows."""
        body = msgspec.msgpack.encode(message)
        signature = self._sign(self._names[0], self._sent, body)
        self._sent += 1
        self._writer.write(len(body).to_bytes(4, "big") + signature + body)

    async def receive(self, kind: Any) -> Any:
        """The next message. Raises LinkLost at the end of the connection."""
        try:
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            if size > _MOST:
                raise LinkLost(f"a message of {size} bytes was announced: the connection is not the other side's")
            signature = await self._reader.readexactly(_SIGNATURE)
            body = await self._reader.readexactly(size)
        except (OSError, asyncio.IncompleteReadError) as error:
            raise LinkLost(f"the connection ended: {_said(error)}") from None
        if not hmac.compare_digest(signature, self._sign(self._names[1], self._received, body)):
            raise LinkLost("a message was not signed by the other side: somebody is between the two")
        self._received += 1
        return msgspec.msgpack.decode(body, type=kind)

    def close(self) -> None:
        """At once: what has not gone out is not waited for."""
        self._writer.transport.abort()

    async def drain(self) -> None:
        """Wait until what was sent has gone out, or the connection is lost."""
        try:
            await self._writer.drain()
        except OSError as error:
            raise LinkLost(f"the connection ended: {_said(error)}") from None

    def _sign(self, name: bytes, number: int, body: bytes) -> bytes:
        signed = hashlib.blake2b(name + number.to_bytes(8, "big"), key=self._session, digest_size=_SIGNATURE)
        signed.update(body)
        return signed.digest()


_NODE, _CONTROLLER = b"node", b"controller"


async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes, version: str) -> Link:
    """The node's side. Raises LinkRefused where there is no controller of this version that knows the key."""
    ours = Greeting(_MAGIC, PROTOCOL, version, secrets.token_bytes(32))
    _write(writer, ours)
    theirs = await _greeting(reader, "there is no Freerun controller at that address: see cluster.listen of the run")
    _refuse_other_version(theirs, version, "the controller")
    if not hmac.compare_digest(theirs.proof, _proof(key, _CONTROLLER, ours.nonce, theirs.nonce)):
        raise LinkRefused("the controller has another key: give both the same FREERUN_KEY or key file")
    _write(writer, Greeting(_MAGIC, PROTOCOL, version, ours.nonce, _proof(key, _NODE, ours.nonce, theirs.nonce)))
    return Link(reader, writer, _proof(key, b"session", ours.nonce, theirs.nonce), _NODE, _CONTROLLER)


async def admit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes, version: str) -> Link:
    """The controller's side. Raises LinkRefused for whoever does not know the key or is of another version."""
    theirs = await _greeting(reader, "it does not speak as a Freerun node does")
    nonce = secrets.token_bytes(32)
    _write(writer, Greeting(_MAGIC, PROTOCOL, version, nonce, _proof(key, _CONTROLLER, theirs.nonce, nonce)))
    _refuse_other_version(theirs, version, "the node")
    again = await _greeting(reader, "it left without showing that it knows the key: give both the same FREERUN_KEY")
    if not hmac.compare_digest(again.proof, _proof(key, _NODE, theirs.nonce, nonce)):
        raise LinkRefused("it has another key: give both the same FREERUN_KEY or key file")
    return Link(reader, writer, _proof(key, b"session", theirs.nonce, nonce), _CONTROLLER, _NODE)


async def until_silent(heard_s: Callable[[], float], what: str) -> None:
    """Raises LinkLost when the other side has been silent for too long. `heard_s` is when it was heard last."""
    while True:
        left_s = heard_s() + LOST_S - time.monotonic()
        if left_s <= 0:
            raise LinkLost(f"{what} for {LOST_S:.0f} s")
        await asyncio.sleep(left_s)


def _refuse_other_version(theirs: Greeting, version: str, who: str) -> None:
    if theirs.protocol != PROTOCOL or theirs.version != version:
        raise LinkRefused(f"{who} has Freerun {theirs.version} and this is {version}: install the same on both")


def _proof(key: bytes, who: bytes, nodes: bytes, controllers: bytes) -> bytes:
    return hmac.digest(key, b"|".join((who, nodes, controllers)), "sha256")


def _write(writer: asyncio.StreamWriter, greeting: Greeting) -> None:
    body = msgspec.msgpack.encode(greeting)
    writer.write(len(body).to_bytes(4, "big") + body)


async def _greeting(reader: asyncio.StreamReader, otherwise: str) -> Greeting:
    try:
        async with asyncio.timeout(_HANDSHAKE_S):
            size = int.from_bytes(await reader.readexactly(4), "big")
            if size > _GREETING:
                raise LinkRefused(otherwise)
            greeting = msgspec.msgpack.decode(await reader.readexactly(size), type=Greeting)
    except (OSError, TimeoutError, asyncio.IncompleteReadError, msgspec.DecodeError):
        raise LinkRefused(otherwise) from None
    if greeting.magic != _MAGIC or len(greeting.nonce) != 32:
        raise LinkRefused(otherwise)
    return greeting


def _said(error: BaseException) -> str:
    if isinstance(error, asyncio.IncompleteReadError):
        return "the other side closed it"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
