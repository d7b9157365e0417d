"""Weights through shared memory: for processes of one machine.

Two slots, each a file in a memory-backed folder, written in turn, so a version stays readable while the next one is
being written. A slot's header names its version and checksum only while its payload is complete; a reader copies,
checks the copy against the checksum, and so never sees half a version, whichever process dies when.

    slot file:  magic | version | checksum | manifest length | payload length | manifest (JSON) | payload
"""

import json
import mmap
import os
import struct
from collections.abc import Mapping
from pathlib import Path

import torch
import xxhash
from torch import Tensor

from freerun.core import Version, WeightsError
from freerun.core.reports import WeightsHandle
from freerun.weights.base import Subscriber

_HEADER = struct.Struct("<8sqQQQ")
_MAGIC = b"freerun1"
_INCOMPLETE = -1
_ALIGNMENT = 64


class ShmPublisher:
    """The one writer. `folder` is private to the run; whoever made the folder removes it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._slots: list[mmap.mmap | None] = [None, None]
        self._version: Version = _INCOMPLETE

    def publish(self, version: Version, tensors: Mapping[str, Tensor]) -> WeightsHandle:
        if version <= self._version:
            raise WeightsError(f"versions only go up: {version} cannot follow {self._version}")
        manifest, payload_bytes = _layout(tensors)
        start = _payload_start(len(manifest))
        which = version % 2
        slot = self._slot(which, start + payload_bytes)
        _HEADER.pack_into(slot, 0, _MAGIC, _INCOMPLETE, 0, 0, 0)
        slot[_HEADER.size : _HEADER.size + len(manifest)] = manifest
        payload = torch.frombuffer(slot, dtype=torch.uint8, offset=start, count=payload_bytes)
        for name, (dtype, shape, offset, size) in json.loads(manifest).items():
            target = payload[offset : offset + size].view(getattr(torch, dtype)).view(shape)
            target.copy_(tensors[name].detach())
        with memoryview(slot) as everything:
            checksum = xxhash.xxh3_64_intdigest(everything[start : start + payload_bytes])
        _HEADER.pack_into(slot, 0, _MAGIC, version, checksum, len(manifest), payload_bytes)
        self._version = version
        return WeightsHandle("shm", version, str(self._path(which)), f"{checksum:016x}")

    def _path(self, which: int) -> Path:
        return self._folder / f"weights-{which}"

    def _slot(self, which: int, size: int) -> mmap.mmap:
        slot = self._slots[which]
        if slot is None or len(slot) != size:
            with open(self._path(which), "w+b") as file:
                _reserve(file.fileno(), size, self._folder)
                slot = self._slots[which] = mmap.mmap(file.fileno(), size)
        return slot


def _reserve(file: int, size: int, folder: Path) -> None:
    """Allocate it now: otherwise writing beyond the memory that there is would kill the process."""
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, size)
        else:
            os.truncate(file, size)
    except OSError as error:
        needed = 2 * size / 2**20
        raise WeightsError(
            f"weights need {needed:,.0f} MiB in {folder}, where there is less ({error.strerror}): make it larger "
            "(of a container: --shm-size)"
        ) from None


class ShmSubscriber(Subscriber):
    def fetch(self, handle: WeightsHandle) -> dict[str, Tensor]:
        try:
            with open(handle.location, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as slot:
                return self._read(slot, handle)
        except (OSError, ValueError) as error:
            raise WeightsError(f"version {handle.version} is not at {handle.location}: {error}") from None

    def _read(self, slot: mmap.mmap, handle: WeightsHandle) -> dict[str, Tensor]:
        if len(slot) < _HEADER.size:
            raise WeightsError(f"version {handle.version}: {handle.location} is not a slot of weights")
        magic, version, checksum, manifest_bytes, payload_bytes = _HEADER.unpack_from(slot, 0)
        if magic != _MAGIC or version != handle.version or f"{checksum:016x}" != handle.checksum:
            held = "an incomplete version" if version == _INCOMPLETE else f"version {version}"
            raise WeightsError(f"version {handle.version} is gone: {handle.location} holds {held}")
        manifest = json.loads(slot[_HEADER.size : _HEADER.size + manifest_bytes])
        start = _payload_start(manifest_bytes)
        copy = bytearray(slot[start : start + payload_bytes])
        if xxhash.xxh3_64_intdigest(copy) != checksum:
            raise WeightsError(f"version {handle.version} changed while it was read, or is damaged")
        payload = torch.frombuffer(copy, dtype=torch.uint8)
        return {
            name: payload[offset : offset + size].view(getattr(torch, dtype)).view(shape)
            for name, (dtype, shape, offset, size) in manifest.items()
        }


def _layout(tensors: Mapping[str, Tensor]) -> tuple[bytes, int]:
    """Where each tensor lies in the payload: name → type, shape, offset, bytes."""
    manifest, offset = {}, 0
    for name, tensor in tensors.items():
        manifest[name] = (str(tensor.dtype).removeprefix("torch."), list(tensor.shape), offset, tensor.nbytes)
        offset += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
    return json.dumps(manifest).encode(), max(offset, _ALIGNMENT)


def _payload_start(manifest_bytes: int) -> int:
    return -(-(_HEADER.size + manifest_bytes) // _ALIGNMENT) * _ALIGNMENT
