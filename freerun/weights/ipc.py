"""Weights by CUDA IPC: for processes on the GPUs of one machine. What travels is where tensors lie, not the tensors.

A subscriber on the publisher's GPU copies them there; one on another GPU, which must see the publisher's too, copies
them across.

The publisher copies a version into one of two sets of buffers, in turn, so that a subscriber can copy out of one while
the next version is written to the other. A checksum over 1 GB would cost more than the copy; instead each set carries
its version on the device, written last, and the subscriber checks it before and after its copy.
"""

import base64
import pickle
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from freerun.core import Version, WeightsError
from freerun.weights.base import WeightsHandle

_STAMP = "__version__"
_DEVICE = 6
"""Where the number of the GPU is among the arguments that rebuild a tensor."""


class IpcPublisher:
    def __init__(self) -> None:
        self._sets: list[dict[str, Tensor] | None] = [None, None]
        self._handles: list[str] = ["", ""]
        self._version: Version = -1

    def publish(self, version: Version, tensors: Mapping[str, Tensor]) -> WeightsHandle:
        if version <= self._version:
            raise WeightsError(f"versions only go up: {version} cannot follow {self._version}")
        which = version % 2
        buffers = self._sets[which]
        if buffers is None:
            buffers = {name: torch.empty_like(tensor.detach()) for name, tensor in tensors.items()}
            buffers[_STAMP] = torch.full((1,), -1, dtype=torch.int64, device="cuda")
            self._sets[which] = buffers
            shared = {name: reduce_tensor(buffer) for name, buffer in buffers.items()}
            gpu = str(torch.cuda.get_device_properties(buffers[_STAMP].device).uuid)
            self._handles[which] = base64.b64encode(pickle.dumps((gpu, shared))).decode()
        buffers[_STAMP].fill_(-1)
        for name, tensor in tensors.items():
            buffers[name].copy_(tensor.detach())
        buffers[_STAMP].fill_(version)
        torch.cuda.synchronize()
        self._version = version
        return WeightsHandle("ipc", version, self._handles[which])


class IpcSubscriber:
    """Opens each set of buffers once. The handle is a pickle: it must come from this run's own trainer."""

    def __init__(self) -> None:
        self._opened: dict[str, dict[str, Tensor]] = {}

    def fetch(self, handle: WeightsHandle) -> dict[str, Tensor]:
        if handle.location not in self._opened:
            gpu, shared = pickle.loads(base64.b64decode(handle.location))
            self._opened[handle.location] = _opened(_device_of(gpu), shared)
        buffers = self._opened[handle.location]
        self._check(buffers, handle)
        copies = {
            name: torch.empty_like(buffer, device="cuda").copy_(buffer)
            for name, buffer in buffers.items()
            if name != _STAMP
        }
        self._check(buffers, handle)
        return copies

    def _check(self, buffers: dict[str, Tensor], handle: WeightsHandle) -> None:
        held = int(buffers[_STAMP].item())
        if held != handle.version:
            raise WeightsError(f"version {handle.version} is gone: its place holds version {held}")


def _opened(device: int, shared: dict[str, Any]) -> dict[str, Tensor]:
    """The publisher's tensors. Processes number GPUs each in their own way, so its number is replaced by ours."""
    tensors = {}
    for name, (rebuild, arguments) in shared.items():
        tensors[name] = rebuild(*arguments[:_DEVICE], device, *arguments[_DEVICE + 1 :])
    return tensors


def _device_of(gpu: str) -> int:
    for device in range(torch.cuda.device_count()):
        if str(torch.cuda.get_device_properties(device).uuid) == gpu:
            return device
    raise WeightsError(f"the weights lie on GPU {gpu}, which this process does not see")
