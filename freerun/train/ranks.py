"""The processes that train together. One alone is the same thing with nobody to talk to."""

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from freerun.core import FreerunError

T = TypeVar("T")
_PATIENCE = timedelta(minutes=30)
"""A rank that is silent for so long in the middle of something has hung; one that died is noticed by the launcher."""
_IDLE = timedelta(days=30)
"""How long the next request may take to come: generation takes its time."""


class Ranks:
    """Sums over all ranks, and what the first one has to say. Everybody has to call the same methods in turn."""

    mesh: DeviceMesh | None = None
    aside: dist.ProcessGroup | None = None
    """For what is done beside training, on another thread: two threads would confuse each other's messages."""

    def __init__(self, rank: int = 0, size: int = 1, device: str = "cpu") -> None:
        self.rank, self.size, self.device = rank, size, device
        if size > 1:
            self.mesh = init_device_mesh(device, (size,))
            self.aside = dist.new_group(backend="gloo", timeout=_PATIENCE)
            self._requests = dist.new_group(backend="gloo", timeout=_IDLE)

    @classmethod
    def join(cls, rank: int, size: int, rendezvous: str, device: str) -> "Ranks":
        """Wait for the others. `rendezvous` is a URL that nobody has used before: tcp://HOST:PORT, where the first rank
        is, or a file. On a GPU each rank sees one, its own."""
        if size == 1:
            return cls(device=device)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
        backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
        dist.init_process_group(backend, init_method=rendezvous, rank=rank, world_size=size, timeout=_PATIENCE)
        return cls(rank, size, device)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def max(self, values: Tensor) -> Tensor:
        if self.size > 1:
            dist.all_reduce(values, dist.ReduceOp.MAX)
        return values

    def say(self, message: T | None) -> T:
        """The first rank's message, for all."""
        box = [message]
        if self.size > 1:
            dist.broadcast_object_list(box, src=0, group=self._requests, device=torch.device("cpu"))
        return cast(T, box[0])

    def by_first(self, work: Callable[[], T]) -> T:
        """What the first rank alone does, and what came of it for all: the result, or the error."""
        outcome: T | FreerunError | None = None
        if self.is_first:
            try:
                outcome = work()
            except FreerunError as error:
                outcome = error
        said = self.say(outcome)
        if isinstance(said, FreerunError):
            raise said
        return cast(T, said)

    def each(self, work: Callable[[], T]) -> list[T]:
        """What every rank does by itself, and what came of it for all: the results in the order of ranks, or the first
        error."""
        outcome: T | FreerunError
        try:
            outcome = work()
        except FreerunError as error:
            outcome = error
        outcomes: list[T | FreerunError | None] = [outcome] * self.size
        if self.size > 1:
            dist.all_gather_object(outcomes, outcome, group=self._requests)
        for one in outcomes:
            if isinstance(one, FreerunError):
                raise one
        return cast(list[T], outcomes)


ALONE = Ranks()


def full_tensor(tensor: Tensor) -> Tensor:
    """The entire tensor, where this rank has a share of it. All ranks have to call this.

    A share is a DTensor. It is recognized by its methods: the class takes half a second to import, and a trainer of one
    rank never needs it.
    """
    gather: Callable[[], Tensor] | None = getattr(tensor, "full_tensor", None)
    return gather() if gather else tensor


def own(tensor: Tensor) -> Tensor:
    """This rank's share, where it has one."""
    local: Callable[[], Tensor] | None = getattr(tensor, "to_local", None)
    return local() if local else tensor
