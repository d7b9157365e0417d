"""Who takes part in broadcasts of versions, and the groups they form for it.

An epoch is a number and its members: engines' processes that have applied, one a machine. Whenever they change, the
next version begins an epoch. Each source (a rank of the trainer) has a group of its own in it: the source and the
members. Groups are torch's own: NCCL between GPUs, gloo between CPUs, with the same code around them. They meet in a
store of the trainer's first rank, and know nothing of a default group that the process may have for something else.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed
from torch import Tensor

from freerun.core import WeightsError

dist: Any = torch.distributed
"""It has more than it declares."""
Store: TypeAlias = Any
PATIENCE = timedelta(seconds=5)
"""How long members wait for each other without progress."""
BUCKET_BYTES = 1 << 26
_ASYNC_ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"


@dataclass(frozen=True)
class Epoch:
    """It travels as a URL, tcp://HOST:PORT/BACKEND/NUMBER/MEMBER,MEMBER: the store's address, then the rest."""

    store: str
    backend: str
    """nccl or gloo."""
    number: int
    members: tuple[int, ...] = ()
    """By the numbers they were given when they applied."""

    @property
    def url(self) -> str:
        return f"tcp://{self.store}/{self.backend}/{self.number}/{','.join(map(str, self.members))}"

    @classmethod
    def of(cls, url: str) -> "Epoch":
        try:
            store, backend, number, members = url.removeprefix("tcp://").split("/")
            return cls(store, backend, int(number), tuple(map(int, filter(None, members.split(",")))))
        except ValueError:
            raise WeightsError(f"{url!r} does not name an epoch of broadcasts") from None


def open_store(host: str, port: int = 0) -> Store:
    """With port 0, the one that others find each other in; it lives as long as this process."""
    return dist.TCPStore(host, port, is_master=not port, wait_for_workers=False, timeout=PATIENCE)


def store_at(address: str) -> Store:
    host, _, port = address.rpartition(":")
    return open_store(host.strip("[]"), int(port))


class Group:
    """A source and the members of an epoch; the source is the first."""

    def __init__(self, store: Store, epoch: Epoch, source: int, place: int, host: str) -> None:
        """`place` is 0 for the source, and behind it the member's. Waits for the others."""
        self.device = "cuda" if epoch.backend == "nccl" else "cpu"
        met = dist.PrefixStore(f"epoch/{epoch.number}/{source}", store)
        self._group: Any = _BACKENDS[epoch.backend](met, place, 1 + len(epoch.members), host)
        self._is_source = place == 0
        self._bucket: Tensor | None = None

    def broadcast(self, content: Tensor) -> None:
        """From the source's host memory to the members', bucket by bucket."""
        for at in range(0, len(content), BUCKET_BYTES):
            piece = content[at : at + BUCKET_BYTES]
            if self.device == "cpu":
                self._wait(self._group.broadcast([piece], self._options()))
            else:
                self._through_gpu(piece)

    def _through_gpu(self, piece: Tensor) -> None:
        if self._bucket is None:
            self._bucket = torch.empty(BUCKET_BYTES, dtype=torch.uint8, device="cuda")
        bucket = self._bucket[: len(piece)]
        if self._is_source:
            bucket.copy_(piece)
        self._wait(self._group.broadcast([bucket], self._options()))
        if not self._is_source:
            piece.copy_(bucket)

    def _options(self) -> Any:
        options = dist.BroadcastOptions()
        options.rootRank = 0
        options.timeout = PATIENCE
        return options

    def _wait(self, work: Any) -> None:
        """NCCL's own way to give up is to end the process."""
        if self.device == "cpu":
            work.wait(PATIENCE)
            return
        until_s = time.monotonic() + PATIENCE.total_seconds()
        while not work.is_completed():
            if time.monotonic() > until_s:
                raise WeightsError(f"a member of the broadcast made no progress for {PATIENCE.total_seconds():g} s")
            time.sleep(0.0005)
        work.wait()

    def close(self) -> None:
        with suppress(RuntimeError):
            self._group.abort()


def _gloo(store: Store, place: int, size: int, host: str) -> Any:
    options = dist.ProcessGroupGloo._Options()
    options._timeout = PATIENCE
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    return dist.ProcessGroupGloo(store, place, size, options)


def _nccl(store: Store, place: int, size: int, host: str) -> Any:
    """Which network NCCL uses is its own to find out (NCCL_SOCKET_IFNAME)."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = PATIENCE
    with _environment(_ASYNC_ERRORS, "0"):
        return dist.ProcessGroupNCCL(store, place, size, options)


_BACKENDS = {"gloo": _gloo, "nccl": _nccl}


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
