"""Weights by CUDA IPC: for two processes on one GPU. What travels is where the tensors lie, not the tensors.

The publisher copies a version into one of two sets of buffers, in turn, so that a subscriber can copy out of one while
the next version is written to the other. A checksum over 1 GB would cost more than the copy; instead each set carries
its version on the device, written last, and the subscriber checks it before and after its copy.
"""

import base64
import pickle
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from freerun.core import Version, WeightsError
from freerun.weights.base import WeightsHandle

_STAMP = "__version__"


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
            self._handles[which] = base64.b64encode(pickle.dumps(shared)).decode()
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
            shared = pickle.loads(base64.b64decode(handle.location))
            self._opened[handle.location] = {name: rebuild(*args) for name, (rebuild, args) in shared.items()}
        buffers = self._opened[handle.location]
        self._check(buffers, handle)
        copies = {name: buffer.clone() for name, buffer in buffers.items() if name != _STAMP}
        self._check(buffers, handle)
        return copies

    def _check(self, buffers: dict[str, Tensor], handle: WeightsHandle) -> None:
        held = int(buffers[_STAMP].item())
        if held != handle.version:
            raise WeightsError(f"version {handle.version} is gone: its place holds version {held}")
