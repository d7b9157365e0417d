"""The processes that train together. One alone is the same thing with nobody to talk to."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

_PATIENCE = timedelta(minutes=30)
"""A rank that is silent for so long has hung; one that died is noticed by the launcher at once."""


class Ranks:
    """Sums over all ranks, and what the first one has to say. Everybody has to call the same methods in turn."""

    def __init__(self, rank: int = 0, size: int = 1, device: str = "cpu") -> None:
        self.rank, self.size, self.device = rank, size, device
        self.mesh: DeviceMesh | None = init_device_mesh(device, (size,)) if size > 1 else None

    @classmethod
    def join(cls, rank: int, size: int, rendezvous: str, device: str) -> "Ranks":
        """Wait for the others. `rendezvous` is a file that all of them see and none has used before."""
        if size == 1:
            return cls(device=device)
        if device == "cuda":
            torch.cuda.set_device(rank % torch.cuda.device_count())
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
        dist.init_process_group(
            backend, init_method=f"file://{rendezvous}", rank=rank, world_size=size, timeout=_PATIENCE
        )
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

    def say(self, message: list[bytes] | None) -> list[bytes]:
        """The first rank's message, for all."""
        if self.size == 1:
            assert message is not None
            return message
        box = [message]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        assert box[0] is not None
        return box[0]


ALONE = Ranks()
