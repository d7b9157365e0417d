"""Weights by CUDA IPC: for processes on the GPUs of one machine. What is sent is where tensors are, not the tensors.

A subscriber on the publisher's GPU is given them where they are; one on another GPU, which must see the publisher's
too, copies them across.

The publisher copies a version into one of two sets of buffers, in turn, so that a subscriber can read one while the
next version is written to the other. A checksum over 1 GB would cost more than a copy; instead each set carries its
version on the device, written last, and the subscriber checks it: before and after a copy of its own; where it makes
none, after the caller's.
"""

import base64
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from freerun.core import Version, WeightsError
from freerun.core.reports import WeightsHandle
from freerun.weights.base import Publisher, Subscriber, Tensors

NONE: Version = -1
_ALIGNED = 512
"""Bytes that each tensor begins at a multiple of."""
_SETS = 2
"""How many sets of buffers are used in turn."""
_DEVICE = 6
"""Where the number of the GPU is among the arguments that rebuild a tensor."""


@dataclass(frozen=True)
class _Place:
    """Where a tensor is among the bytes of a version."""

    start: int
    end: int
    dtype: torch.dtype
    shape: torch.Size


class Flat:
    """A version's tensors in one block of memory: it is copied at once, and not tensor by tensor, between which a busy
    process would wait for its other threads."""

    def __init__(self, layout: dict[str, _Place], memory: Tensor) -> None:
        self.layout = layout
        self.memory = memory
        self.tensors = {
            name: self.memory[place.start : place.end].view(place.dtype).view(place.shape)
            for name, place in layout.items()
        }
        self._stamp = self.memory[_size(layout) - _ALIGNED :].view(torch.int64)[0]

    @classmethod
    def like(cls, tensors: Mapping[str, Tensor]) -> "Flat":
        layout, start = {}, 0
        for name, tensor in tensors.items():
            end = start + tensor.nbytes
            layout[name] = _Place(start, end, tensor.dtype, tensor.shape)
            start = -(-end // _ALIGNED) * _ALIGNED
        device = next(iter(tensors.values())).device
        flat = cls(layout, torch.empty(_size(layout), dtype=torch.uint8, device=device))
        flat.version = NONE
        return flat

    @property
    def version(self) -> Version:
        return int(self._stamp.item())

    @version.setter
    def version(self, version: Version) -> None:
        self._stamp.fill_(version)

    def fill(self, tensors: Mapping[str, Tensor]) -> None:
        torch._foreach_copy_(list(self.tensors.values()), [tensors[name].detach() for name in self.tensors])

    def copied(self, device: str) -> "Flat":
        return Flat(self.layout, self.memory.to(device, copy=True))


def _size(layout: dict[str, _Place]) -> int:
    """The size of the memory, with room for the version behind the last tensor."""
    return (-(-max(place.end for place in layout.values()) // _ALIGNED) + 1) * _ALIGNED


class IpcPublisher(Publisher):
    def __init__(self) -> None:
        self._sets: list[Flat | None] = [None, None]
        self._handles: list[str] = ["", ""]
        self._version: Version = NONE

    def publish(self, version: Version, tensors: Tensors) -> WeightsHandle:
        tensors = dict(tensors)
        if version <= self._version:
            raise WeightsError(f"versions only go up: {version} cannot follow {self._version}")
        which = version % 2
        flat = self._sets[which]
        if flat is None:
            flat = self._sets[which] = Flat.like(tensors)
            gpu = str(torch.cuda.get_device_properties(flat.memory.device).uuid)
            shared = reduce_tensor(flat.memory)
            self._handles[which] = base64.b64encode(pickle.dumps((gpu, flat.layout, shared))).decode()
        flat.version = NONE
        flat.fill(tensors)
        flat.version = version
        torch.cuda.synchronize()
        self._version = version
        return WeightsHandle("ipc", version, self._handles[which])


class IpcSubscriber(Subscriber):
    """Opens each set of buffers once, and has one place for copies from another GPU. The handle is a pickle: it must
    come from this run's own trainer."""

    def __init__(self) -> None:
        self._opened: dict[str, Flat] = {}
        self._copy: Flat | None = None

    def fetch(self, handle: WeightsHandle) -> dict[str, Tensor]:
        if handle.location not in self._opened:
            gpu, layout, shared = pickle.loads(base64.b64decode(handle.location))
            self._opened[handle.location] = Flat(layout, opened(device_of(gpu), *shared))
            if len(self._opened) > _SETS:  # the trainer was started again: what it had before is let go of
                del self._opened[next(iter(self._opened))]
        flat = self._opened[handle.location]
        if _is_here(flat):
            return flat.tensors
        _check(flat, handle)
        if self._copy is None:
            self._copy = flat.copied("cuda")
        else:
            self._copy.memory.copy_(flat.memory)
        _check(flat, handle)
        return self._copy.tensors

    def confirm(self, handle: WeightsHandle) -> None:
        if _is_here(flat := self._opened[handle.location]):
            _check(flat, handle)


def _is_here(flat: Flat) -> bool:
    """Whether the memory is on this process's own GPU."""
    return flat.memory.device.index == torch.cuda.current_device()


def _check(flat: Flat, handle: WeightsHandle) -> None:
    if (held := flat.version) != handle.version:
        raise WeightsError(f"version {handle.version} is gone: its place holds version {held}")


def opened(device: int, rebuild: Callable[..., Tensor], arguments: tuple[Any, ...]) -> Tensor:
    """The publisher's memory. Processes number GPUs each in their own way, so its number is replaced by ours."""
    return rebuild(*arguments[:_DEVICE], device, *arguments[_DEVICE + 1 :])


def device_of(gpu: str) -> int:
    for device in range(torch.cuda.device_count()):
        if str(torch.cuda.get_device_properties(device).uuid) == gpu:
            return device
    raise WeightsError(f"the weights lie on GPU {gpu}, which this process does not see")
