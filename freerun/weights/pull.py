"""Pulls a slot from the machine that published it into a file here, by ranges over several connections.

What arrives is complete and has the checksum that was asked for, or it stays marked as incomplete and WeightsError is
raised: whether bytes were cut, turned, delayed, or those of another version.
"""

import mmap
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Lock

import xxhash

from freerun.core import Version, WeightsError
from freerun.weights.peer import PATIENCE_S, Kind, Peer, Status, prove_as_client
from freerun.weights.slot import HEADER_BYTES, SlotHeader, too_little_memory

CONNECTIONS = 4
_RANGE = 1 << 24


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


def pull(source: Source, what: Kind, version: Version, checksum: str | None, path: Path) -> int:
    """Bring the slot to `path`; how many bytes that took. Without `checksum`, it is checked against its own."""
    header = source.header(what, version)
    if checksum is not None and header.hex != checksum:
        raise Gone(f"version {version} of {source.address} is another than the one that was announced")
    slot = mapped(path, header.size)  # which takes its time, so nobody is kept waiting meanwhile
    slot[:HEADER_BYTES] = SlotHeader().encoded()
    room = memoryview(slot)
    _pull_ranges(source, what, header, room)
    if xxhash.xxh3_64_intdigest(room[HEADER_BYTES:]) != header.checksum:
        source.header(what, version)  # or says that another took its place
        raise WeightsError(f"weights from {source.address}: version {version} was damaged on its way")
    slot[:HEADER_BYTES] = header.encoded()
    return header.size


def _pull_ranges(source: Source, what: Kind, header: SlotHeader, room: "memoryview[int]") -> None:
    """Over several connections, each taking the next range. One that fails ends them all."""
    ranges = iter(range(HEADER_BYTES, header.size, _RANGE))
    turn, failed = Lock(), Event()

    def take_turns() -> None:
        with source.connected() as peer:
            while not failed.is_set():
                with turn:
                    start = next(ranges, None)
                if start is None:
                    return
                length = min(_RANGE, header.size - start)
                status, _ = peer.ask(what, header.version, start, length)
                if status is Status.GONE:
                    raise Gone(f"version {header.version} is gone: another took its place while it was fetched")
                peer.receive_into(room[start : start + length])

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


def mapped(path: Path, size: int) -> mmap.mmap:
    """A file of that size, as memory to write to. It is allocated now: beyond what there is, writing would kill."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if os.fstat(file).st_size != size:
            os.truncate(file, size)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, size)
        return mmap.mmap(file, size, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
    except OSError as error:
        raise too_little_memory(path.parent, size, error) from None
    finally:
        os.close(file)
