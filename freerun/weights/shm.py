"""Weights through shared memory: for processes of one machine.

Two slots, written in turn, so a version stays readable while the next one is being written.
"""

from pathlib import Path

import torch
from torch import Tensor

from freerun.core import Version, WeightsError
from freerun.core.reports import WeightsHandle
from freerun.weights.base import Publisher, Subscriber, Tensors, each
from freerun.weights.slot import NONE, SlotHeader, SlotReader, SlotWriter


class Slots:
    """The two slots of a publisher. `folder` is private to the run; `part` tells the ranks' apart. Tensors are kept in
    `dtype` where that is narrower than their own."""

    def __init__(self, folder: Path, part: int = 0, dtype: torch.dtype | None = None) -> None:
        self._dtype = dtype
        self._writers = [SlotWriter(folder / f"weights-{part}-{which}") for which in range(2)]
        self.version: Version = NONE

    def path(self, version: Version) -> Path:
        return self._writers[version % 2].path

    def write(self, version: Version, tensors: Tensors) -> SlotHeader:
        if version <= self.version:
            raise WeightsError(f"versions only go up: {version} cannot follow {self.version}")
        narrowed = ((name, self._narrow(tensor)) for name, tensor in each(tensors))
        header = self._writers[version % 2].write(version, narrowed)
        self.version = version
        return header

    def _narrow(self, tensor: Tensor) -> Tensor:
        narrower = self._dtype is not None and self._dtype.itemsize < tensor.dtype.itemsize
        return tensor.to(self._dtype) if narrower else tensor


class ShmPublisher(Publisher):
    def __init__(self, folder: Path, part: int = 0, dtype: torch.dtype | None = None) -> None:
        self._slots = Slots(folder, part, dtype)

    def publish(self, version: Version, tensors: Tensors) -> WeightsHandle:
        header = self._slots.write(version, tensors)
        return WeightsHandle("shm", version, str(self._slots.path(version)), header.hex)


class ShmSubscriber(Subscriber):
    def fetch(self, handle: WeightsHandle) -> dict[str, Tensor]:
        return SlotReader(Path(handle.location)).read(handle.version, handle.checksum)
