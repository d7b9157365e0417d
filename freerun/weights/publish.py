"""The publisher of a trainer's rank, made from the way that was chosen for the run."""

from pathlib import Path

from freerun.core import WeightsError
from freerun.weights.base import Publisher
from freerun.weights.way import WeightsWay


def publisher_for(
    way: WeightsWay, rank: int, scratch: Path, host: str, key: str | None, device: str = "cpu"
) -> Publisher:
    """`scratch` is in shared memory, and visible to the engines of the same machine; at `host` this rank is reached by
    the other machines, whose engines know the run's key."""
    import torch

    dtype = getattr(torch, way.dtype) if way.dtype else None
    if way.name == "ipc":
        from freerun.weights.ipc import IpcPublisher

        return IpcPublisher()
    if way.name == "shm":
        from freerun.weights.shm import ShmPublisher

        return ShmPublisher(scratch, rank, dtype)
    if way.name == "files":
        from freerun.weights.files import FilePublisher

        return FilePublisher(Path(way.folder), rank)
    if not key:
        raise WeightsError("weights by TCP need the run's key")
    from freerun.weights.tcp import TcpPublisher

    pulled = TcpPublisher(scratch, host, key, rank, dtype, way.deltas)
    if way.name == "tcp":
        return pulled
    from freerun.weights.nccl import NcclPublisher

    return NcclPublisher(pulled, rank, host, "nccl" if device == "cuda" else "gloo")
