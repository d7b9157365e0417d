"""Weights by broadcast: NCCL between GPUs of several machines; the same code runs over gloo between CPUs.

What is broadcast are the slots that TCP would pull, each from the rank that has it, one rank after another, into slots
of the members' machines. So everything else stays as it is by TCP: a slot is used only with its checksum, once a
machine; and whoever could not take part (a newcomer, or everybody when a member has vanished) pulls the version.

    an engine has taken two versions in a row  → it applies in the store; the next version begins an epoch with it
    a version is published                     → members arrive, the first source says go, sources take turns
    somebody does not arrive, or fails         → the epoch is broken, all pull, and apply again

torch's stores and groups ask nobody for a key: this way is for networks that only the run's machines are in.
"""

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import torch
from torch import Tensor

from freerun.core import Version, WeightsError
from freerun.core.reports import WeightsHandle
from freerun.weights.base import Publisher, Subscriber, Tensors, of_parts
from freerun.weights.epoch import PATIENCE, Epoch, Group, Store, open_store, store_at
from freerun.weights.slot import HEADER_BYTES, MappedSlots, SlotHeader, SlotReader, checksum_of
from freerun.weights.tcp import TcpPublisher, is_beside, locked, place_of, pulled_slot

_LOOK_S = 0.005
_FAILURES = (RuntimeError, OSError, WeightsError)
"""torch's are RuntimeErrors."""


class NcclPublisher(Publisher):
    """A rank of the trainer. `pulled` publishes for those who pull; the first rank has the store.

    A thread broadcasts what `announce` says, while training goes on; it is done, or gives up, before the next version.
    """

    def __init__(self, pulled: TcpPublisher, rank: int, host: str, backend: str) -> None:
        self._pulled, self._rank, self._host = pulled, rank, host
        self._store: Store | None = None
        self._epoch = Epoch("", backend, 0)
        if rank == 0:
            self._store = store = open_store(host)
            self._epoch = Epoch(f"{host}:{store.port}", backend, 0)
        self._applied = 0
        self._slots = MappedSlots()
        self._group: tuple[int, Group] | None = None
        self._sending: Thread | None = None
        self._next = Event()
        """Set when the version that is being broadcast has to give way to another."""

    def publish(self, version: Version, tensors: Tensors) -> WeightsHandle:
        if self._sending:
            self._next.set()
            self._sending.join()
        handle = self._pulled.publish(version, tensors)
        if self._rank:
            return handle
        return WeightsHandle("nccl", version, self._current().url, parts=[handle])

    def announce(self, handle: WeightsHandle) -> None:
        epoch = Epoch.of(handle.location)
        if epoch.members:
            self._next.clear()
            self._sending = Thread(target=self._send, args=(epoch, handle), name="broadcast", daemon=True)
            self._sending.start()

    def _current(self) -> Epoch:
        """The members that are left, and those who have applied since the last version."""
        assert self._store is not None
        epoch, applied = self._epoch, int(self._store.add("applied", 0))
        stayed = () if self._store.check([_broken(epoch)]) else epoch.members
        members = (*stayed, *range(self._applied + 1, applied + 1))
        if members != epoch.members:
            self._epoch = Epoch(epoch.store, epoch.backend, epoch.number + 1, members)
        self._applied = applied
        return self._epoch

    def _send(self, epoch: Epoch, handle: WeightsHandle) -> None:
        try:
            self._store = store = self._store or store_at(epoch.store)
            if self._take_turn(store, epoch, handle):
                part = handle.parts[self._rank]
                group, slot = self._joined(store, epoch), place_of(part.location)[1]
                header = SlotReader(slot).header()
                group.broadcast(torch.frombuffer(bytearray(header.encoded()), dtype=torch.uint8))
                group.broadcast(_content(self._slots.room(slot)[: header.size]))
                store.set(_turn(handle.version, self._rank + 1), "")
        except _FAILURES:
            self._give_up(epoch)

    def _take_turn(self, store: Store, epoch: Epoch, handle: WeightsHandle) -> bool:
        """Wait for the rank before, or for all members; whether it is still worth while then."""
        while not self._next.wait(_LOOK_S):
            if store.check([_broken(epoch)]):
                return False
            if self._rank == 0 and store.add(_arrived(handle.version), 0) == len(epoch.members):
                store.set(_turn(handle.version, 0), "")
                return True
            if self._rank and store.check([_turn(handle.version, self._rank)]):
                return True
        raise WeightsError("the next version is there before all members were")

    def _joined(self, store: Store, epoch: Epoch) -> Group:
        if self._group is None or self._group[0] != epoch.number:
            self._leave()
            self._group = (epoch.number, Group(store, epoch, self._rank, 0, self._host))
        return self._group[1]

    def _leave(self) -> None:
        if self._group:
            self._group[1].close()
            self._group = None

    def _give_up(self, epoch: Epoch) -> None:
        self._leave()
        if self._store is not None:
            with suppress(RuntimeError):
                self._store.set(_broken(epoch), "")


class NcclSubscriber(Subscriber):
    """An engine's process. `pulled` fetches by TCP, into the same slots of `folder`."""

    def __init__(self, folder: Path, host: str, pulled: Subscriber) -> None:
        self._folder, self._host, self._pulled = folder, host, pulled
        self._slots = MappedSlots()
        self._store: Store | None = None
        self._met_at = ""
        """Where that is."""
        self._number: int | None = None
        """What it was given when it applied."""
        self._groups: tuple[int, list[Group]] = (0, [])
        self._last: Version | None = None
        self._member: int | None = None
        """The machine's lock on being the member, once this process has it."""

    def fetch(self, handle: WeightsHandle) -> dict[str, Tensor]:
        self.received_bytes = 0
        away = not all(is_beside(self._folder, place_of(part.location)[1]) for part in handle.parts)
        epoch = Epoch.of(handle.location)
        if epoch.store != self._met_at:
            self._meet_anew(epoch.store)
        if away and self._number in epoch.members:
            self._take_part(epoch, handle)
        elif away:
            self._wait_for_member(epoch, handle)
        tensors = self._pulled.fetch(of_parts(handle.parts))
        self.received_bytes += self._pulled.received_bytes
        if away and self._number is None and self._last == handle.version - 1:
            self._apply(epoch)
        self._last = handle.version
        return tensors

    def _meet_anew(self, store: str) -> None:
        """The trainer was started again: another store, in which numbers of members mean others."""
        self._met_at = store
        if self._number is not None:
            self._leave()
            self._store = self._number = None
            self._say(-1)

    def _apply(self, epoch: Epoch) -> None:
        """One process of the machine does, and stays it while it lives."""
        if epoch.backend == "nccl" and not torch.cuda.is_available():
            return
        if self._member is None:
            lock = os.open(self._folder / "nccl-member", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)
                return
            self._member = lock
        with suppress(*_FAILURES):
            self._store = store_at(epoch.store)
            self._number = self._store.add("applied", 1)
            self._say(-1)

    def _say(self, version: Version) -> None:
        """To the machine's other engines: the member's number, and the version that it is done with."""
        assert self._member is not None
        os.pwrite(self._member, f"{self._number or 0:20d} {version:20d}".encode(), 0)

    def _wait_for_member(self, epoch: Epoch, handle: WeightsHandle) -> None:
        """Until the machine's member is done with that version, one way or another, if it takes part at all."""
        until_s = time.monotonic() + 4 * PATIENCE.total_seconds()
        while time.monotonic() < until_s and self._member_is_busy(epoch, handle.version):
            time.sleep(_LOOK_S)

    def _member_is_busy(self, epoch: Epoch, version: Version) -> bool:
        try:
            with open(self._folder / "nccl-member", "rb") as said:
                number, done = map(int, said.read().split())
                with suppress(BlockingIOError):
                    fcntl.flock(said, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    return False  # it has died
                return number in epoch.members and done < version
        except (OSError, ValueError):
            return False

    def _take_part(self, epoch: Epoch, handle: WeightsHandle) -> None:
        assert self._store is not None
        store = self._store
        try:
            store.add(_arrived(handle.version), 1)
            store.wait([_turn(handle.version, 0)], PATIENCE)
            for source, part in enumerate(handle.parts):
                self.received_bytes += self._receive(self._joined(store, epoch, source), part)
        except _FAILURES:
            self._leave()
            self._number = None
            with suppress(RuntimeError):
                store.set(_broken(epoch), "")
        finally:
            self._say(handle.version)

    def _joined(self, store: Store, epoch: Epoch, source: int) -> Group:
        number, groups = self._groups
        if number != epoch.number:
            self._leave()
            self._groups = (epoch.number, groups := [])
        if source == len(groups):
            place = 1 + epoch.members.index(self._number or 0)
            groups.append(Group(store, epoch, source, place, self._host))
        return groups[source]

    def _leave(self) -> None:
        for group in self._groups[1]:
            group.close()
        self._groups = (0, [])

    def _receive(self, group: Group, part: WeightsHandle) -> int:
        """Into the slot that a pull would fill."""
        path = pulled_slot(self._folder, part.location)
        with locked(path):
            first = torch.empty(HEADER_BYTES, dtype=torch.uint8)
            group.broadcast(first)
            header = SlotHeader.decoded(bytes(first.numpy()))
            if header is None or (header.version, header.hex) != (part.version, part.checksum):
                raise WeightsError(f"another version than {part.version} was broadcast")
            room = self._slots.room(path, header.size)[: header.size]
            room[:HEADER_BYTES] = SlotHeader().encoded()
            group.broadcast(_content(room))
            if checksum_of(room[HEADER_BYTES:]) != header.checksum:
                raise WeightsError(f"version {part.version} was damaged in its broadcast")
            room[:HEADER_BYTES] = header.encoded()
        return header.size


def _content(slot: "memoryview[int]") -> Tensor:
    """All but its header."""
    return torch.frombuffer(slot, dtype=torch.uint8, offset=HEADER_BYTES)


def _arrived(version: Version) -> str:
    return f"arrived/{version}"


def _turn(version: Version, source: int) -> str:
    return f"turn/{version}/{source}"


def _broken(epoch: Epoch) -> str:
    return f"broken/{epoch.number}"
