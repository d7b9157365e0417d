"""Weights by TCP: for engines on other machines than the trainer's.

A rank publishes into slots in its machine's shared memory and serves them at its address. An engine's machine has
slots of its own, into which a version is pulled once: of the engines there, the first to take the lock pulls it, and
the others find it complete. All of them then read it as any slot; so do engines on the publisher's machine, from the
publisher's slots.

    location:  tcp://HOST:PORT/path/of/the/slot/on/the/publisher's/machine
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import xxhash
from torch import Tensor

from freerun.core import Version, WeightsError
from freerun.core.reports import WeightsHandle
from freerun.weights.base import Publisher, Subscriber, Tensors
from freerun.weights.delta import Deltas, apply_delta
from freerun.weights.peer import Kind, Vanished
from freerun.weights.pull import Source, pull
from freerun.weights.shm import Slots
from freerun.weights.slot import MappedSlots, SlotReader
from freerun.weights.slot_server import SlotServer

_SCHEME = "tcp://"


class TcpPublisher(Publisher):
    """Before a version takes a slot, it waits for those who are in the middle of what the slot held."""

    def __init__(
        self,
        folder: Path,
        host: str,
        key: str,
        part: int = 0,
        dtype: torch.dtype | None = None,
        deltas: bool = False,
    ) -> None:
        self._slots = Slots(folder, part, dtype)
        self._deltas = Deltas(folder, part) if deltas else None
        self.server = SlotServer(host, key, self._find)

    def publish(self, version: Version, tensors: Tensors) -> WeightsHandle:
        self.server.wait_until_unread(version - 2)
        if self._deltas:
            self._deltas.finish()
        header = self._slots.write(version, tensors)
        if self._deltas:
            self._deltas.begin(version, self._slots.path(version - 1), self._slots.path(version))
        location = f"{_SCHEME}{self.server.address}{self._slots.path(version)}"
        return WeightsHandle("tcp", version, location, header.hex)

    def _find(self, what: Kind, version: Version, wait: Callable[[], None]) -> Path | None:
        if what is Kind.WHOLE:
            return self._slots.path(version)
        return self._deltas.path(version, wait) if self._deltas else None


class TcpSubscriber(Subscriber):
    """`folder` is in shared memory, and the same for all engines of the machine."""

    def __init__(self, folder: Path, key: str) -> None:
        self._folder, self._key, self._slots = folder, key, MappedSlots()

    def fetch(self, handle: WeightsHandle) -> dict[str, Tensor]:
        self.received_bytes = 0
        address, path = place_of(handle.location)
        if is_beside(self._folder, path):
            return SlotReader(path).read(handle.version, handle.checksum)
        here = pulled_slot(self._folder, handle.location)
        with once_a_machine(here, handle) as shared:
            source = Source(address, self._key)
            if not holds(here, handle) and not self._changed(source, handle, here):
                self.received_bytes += pull(source, Kind.WHOLE, handle.version, handle.checksum, here, self._slots)
            shared()
            return SlotReader(here).read(handle.version, handle.checksum)

    def _changed(self, source: Source, handle: WeightsHandle, here: Path) -> bool:
        """Make the version from the one before, if that is here and the publisher offers what changed."""
        before = pulled_slot(self._folder, f"{handle.location[:-1]}{(handle.version - 1) % 2}")
        if not 0 <= SlotReader(before).header().version == handle.version - 1:
            return False
        delta = here.with_suffix(".delta")
        try:
            self.received_bytes += pull(source, Kind.DELTA, handle.version, None, delta, self._slots)
            content = SlotReader(delta).content(handle.version, SlotReader(delta).header().hex)
            apply_delta(content, before, here, self._slots)
        except Vanished:
            raise  # it would not send the whole either
        except (WeightsError, OSError, IndexError):
            return False
        return holds(here, handle)


def is_beside(folder: Path, slot: Path) -> bool:
    """Whether that folder is the publisher's own, and not only called the same on another machine."""
    return slot.parent == folder and slot.exists()


def pulled_slot(folder: Path, location: str) -> Path:
    """The slot of this machine for what is published there: the same one when the trainer is started again, and serves
    it at another port."""
    address, slot = place_of(location)
    published = f"{address.rpartition(':')[0]}{slot}"
    return folder / f"pulled-{xxhash.xxh3_64_hexdigest(published.encode())}"


def holds(slot: Path, handle: WeightsHandle) -> bool:
    held = SlotReader(slot).header()
    return (held.version, held.hex) == (handle.version, handle.checksum)


def place_of(location: str) -> tuple[str, Path]:
    """Who serves a slot, and where it lies on their machine."""
    address, slash, path = location.removeprefix(_SCHEME).partition("/")
    if not location.startswith(_SCHEME) or not slash or not address.rpartition(":")[2].isdigit():
        raise WeightsError(f"{location!r} is not tcp://HOST:PORT/SLOT")
    return address, Path(slash + path)


@contextmanager
def once_a_machine(slot: Path, handle: WeightsHandle) -> Iterator[Callable[[], None]]:
    """One process at a time, until it calls what it is given: then any number, to read.

    Those who waited while another failed to get the same version fail with it: its source is lost, and each of them
    would wait as long again.
    """
    began_s = time.monotonic()
    with locked(slot) as lock:
        if failed := os.read(lock, 1 << 16):
            checksum, at_s, why = json.loads(failed)
            if checksum == handle.checksum and at_s > began_s:
                raise WeightsError(why)
        try:
            yield lambda: fcntl.flock(lock, fcntl.LOCK_SH)
        except WeightsError as error:
            os.ftruncate(lock, 0)
            os.pwrite(lock, json.dumps([handle.checksum, time.monotonic(), str(error)]).encode(), 0)
            raise


@contextmanager
def locked(slot: Path) -> Iterator[int]:
    """The slot's lock, which ends with its process, however that ends."""
    lock = os.open(slot.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)
