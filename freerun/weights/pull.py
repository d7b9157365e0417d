"""Pulls a slot from the machine that published it into a file here, by ranges over several connections.

What arrives is complete and has the checksum that was asked for, or it stays marked as incomplete and WeightsError is
raised: whether bytes were cut, turned, delayed, or those of another version.
"""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Lock

from freerun.core import Version, WeightsError
from freerun.weights.peer import PATIENCE_S, Kind, Peer, Status, prove_as_client
from freerun.weights.slot import (
    BLOCK,
    HEADER_BYTES,
    MappedSlots,
    SlotHeader,
    block_hash,
    checksum_of_blocks,
)

CONNECTIONS = 4
_RANGE = 16 * BLOCK


class Source:
    """A slot server, and the key that it asks for."""

    def __init__(self, address: str, key: str) -> None:
        self.address, self._key = address, key
        host, _, port = address.rpartition(":")
        self._where = (host.strip("[]"), int(port))

    @contextmanager
    def connected(self) -> Iterator[Peer]:
        """What goes wrong on the way is said with the address."""
        try:
            with Peer(socket.create_connection(self._where, PATIENCE_S)) as peer:
                prove_as_client(peer, self._key)
                yield peer
        except WeightsError as error:
            raise type(error)(f"weights from {self.address}: {error}") from None
        except OSError as error:
            said = error.strerror or error
            raise WeightsError(f"weights from {self.address}: {said}; is its machine cut off?") from None

    def header(self, what: Kind, version: Version) -> SlotHeader:
        """What the server says that it has of this."""
        with self.connected() as peer:
            status, held = peer.ask(what, version, 0, HEADER_BYTES)
            if status is Status.GONE:
                instead = f"version {held} has taken its place" if held > version else "it is not there"
                raise Gone(f"version {version} is gone: {instead}")
            header = SlotHeader.decoded(peer.receive(HEADER_BYTES))
            if header is None or header.version != version:
                raise Gone(f"version {version} is gone: another is taking its place")
            return header


class Gone(WeightsError):
    """The publisher does not have it, or not any more."""


def pull(source: Source, what: Kind, version: Version, checksum: str | None, path: Path, slots: MappedSlots) -> int:
    """Bring the slot to `path`; how many bytes that took. Without `checksum`, it is checked against its own."""
    header = source.header(what, version)
    if checksum is not None and header.hex != checksum:
        raise Gone(f"version {version} of {source.address} is another than the one that was announced")
    room = slots.room(path, header.size)  # the first time this takes a while, so nobody is kept waiting meanwhile
    room[:HEADER_BYTES] = SlotHeader().encoded()
    hashes = _pull_ranges(source, what, header, room)
    if checksum_of_blocks(hashes) != header.checksum:
        source.header(what, version)  # or says that another took its place
        raise WeightsError(f"weights from {source.address}: version {version} was damaged on its way")
    room[:HEADER_BYTES] = header.encoded()
    return header.size


def _pull_ranges(source: Source, what: Kind, header: SlotHeader, room: "memoryview[int]") -> list[bytes]:
    """Over several connections, each taking the next range; one that fails ends them all. Returns blocks' hashes."""
    ranges = iter(range(HEADER_BYTES, header.size, _RANGE))
    hashes = [b""] * -(-(header.size - HEADER_BYTES) // BLOCK)
    turn, failed = Lock(), Event()

    def take_turns() -> None:
        with source.connected() as peer:
            while not failed.is_set():
                with turn:
                    start = next(ranges, None)
                if start is None:
                    return
                end = min(start + _RANGE, header.size)
                status, _ = peer.ask(what, header.version, start, end - start)
                if status is Status.GONE:
                    raise Gone(f"version {header.version} is gone: another took its place while it was fetched")
                for at in range(start, end, BLOCK):
                    block = room[at : min(at + BLOCK, end)]
                    peer.receive_into(block)
                    hashes[(at - HEADER_BYTES) // BLOCK] = block_hash(block)

    def pulled() -> None:
        try:
            take_turns()
        except BaseException:
            failed.set()
            raise

    connections = min(CONNECTIONS, -(-(header.size - HEADER_BYTES) // _RANGE))
    with ThreadPoolExecutor(connections) as pool:
        pulling = [pool.submit(pulled) for _ in range(connections)]
    for one in pulling:
        one.result()
    return hashes
