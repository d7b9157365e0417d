"""A slot: a file in a memory-backed folder that holds some tensors of one version.

It is written by one process and read by any. Its header names version and checksum only while the rest is complete; a
reader copies, checks the copy against the checksum, and so never sees half a version, whichever process dies when.
Shared memory is slots that everybody reads in place; TCP brings a slot's bytes to another machine's slot.

    slot file:  magic | version | checksum | payload length | manifest length | payload | manifest (JSON)

The manifest comes last, since tensors may be gathered as they are written. The checksum covers payload and manifest.
"""

import json
import os
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor

from freerun.core import Version, WeightsError

NONE: Version = -1
"""The version of a slot that holds nothing complete."""
_HEADER = struct.Struct("<8sqQQQ")
HEADER_BYTES = _HEADER.size
_MAGIC = b"freerun2"
_ALIGNMENT = 64

Manifest = dict[str, tuple[str, list[int], int, int]]
"""Where each tensor lies in the payload: name → type, shape, offset, bytes."""


@dataclass(frozen=True)
class SlotHeader:
    version: Version = NONE
    checksum: int = 0
    payload_bytes: int = 0
    manifest_bytes: int = 0

    @property
    def size(self) -> int:
        """The slot's, this included."""
        return HEADER_BYTES + self.payload_bytes + self.manifest_bytes

    @property
    def hex(self) -> str:
        """The checksum, as handles have it."""
        return f"{self.checksum:016x}"

    @property
    def described(self) -> str:
        return "an incomplete version" if self.version == NONE else f"version {self.version}"

    def encoded(self) -> bytes:
        return _HEADER.pack(_MAGIC, self.version, self.checksum, self.payload_bytes, self.manifest_bytes)

    @classmethod
    def decoded(cls, content: bytes) -> "SlotHeader | None":
        if len(content) < HEADER_BYTES:
            return None
        magic, *fields = _HEADER.unpack_from(content)
        return cls(*fields) if magic == _MAGIC else None


class SlotWriter:
    """The one writer of that slot. Whoever made its folder removes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def write(self, version: Version, tensors: Iterable[tuple[str, Tensor]], about: Any = None) -> SlotHeader:
        """`about` is what else the manifest says."""
        if self._file is None:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        file, hashed, offset = self._file, xxhash.xxh3_64(), 0
        manifest: Manifest = {}

        def put(content: "memoryview[int] | bytes") -> None:
            nonlocal offset
            _write_at(file, content, HEADER_BYTES + offset)
            hashed.update(content)
            offset += len(content)

        try:
            _write_at(file, SlotHeader().encoded(), 0)
            for name, tensor in tensors:
                content = _bytes_of(tensor)
                kind = str(tensor.dtype).removeprefix("torch.")
                manifest[name] = (kind, list(tensor.shape), offset, len(content))
                put(content)
                put(bytes(-offset % _ALIGNMENT))
            payload_bytes = offset
            put(json.dumps([manifest, about]).encode())
            put(b" " * (-offset % _ALIGNMENT))
            header = SlotHeader(version, hashed.intdigest(), payload_bytes, offset - payload_bytes)
            os.truncate(file, header.size)
            _write_at(file, header.encoded(), 0)
        except OSError as error:
            raise too_little_memory(self.path.parent, offset, error) from None
        return header


class SlotReader:
    """Reads a slot of any writer. A file that shrinks meanwhile is damage, and no crash: it is not mapped."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def header(self) -> SlotHeader:
        """An incomplete one, where the file is not there or is no slot."""
        try:
            with open(self.path, "rb") as file:
                return SlotHeader.decoded(file.read(HEADER_BYTES)) or SlotHeader()
        except FileNotFoundError:
            return SlotHeader()

    def read(self, version: Version, checksum: str) -> dict[str, Tensor]:
        """Exactly that version, copied; or WeightsError."""
        return self.content(version, checksum).tensors()

    def content(self, version: Version, checksum: str) -> "SlotContent":
        try:
            with open(self.path, "rb") as file:
                header = SlotHeader.decoded(file.read(HEADER_BYTES))
                if header is None:
                    raise WeightsError(f"version {version}: {self.path} is not a slot of weights")
                if header.version != version or header.hex != checksum:
                    raise WeightsError(f"version {version} is gone: {self.path} holds {header.described}")
                if os.fstat(file.fileno()).st_size != header.size:
                    raise WeightsError(f"version {version} at {self.path} is damaged: it is cut short")
                content = torch.empty(header.size - HEADER_BYTES, dtype=torch.uint8)
                _read_all(file.readinto, content.numpy().data)
        except OSError as error:
            raise WeightsError(f"version {version} is not at {self.path}: {error}") from None
        if xxhash.xxh3_64_intdigest(content.numpy().data) != header.checksum:
            raise WeightsError(f"version {version} changed while it was read, or is damaged")
        return SlotContent(content, *decode_manifest(content[header.payload_bytes :].numpy()))


@dataclass(frozen=True)
class SlotContent:
    """A copy of what a slot held."""

    content: Tensor
    """Its bytes."""
    manifest: Manifest
    about: Any

    def tensors(self) -> dict[str, Tensor]:
        return {
            name: self.content[offset : offset + size].view(getattr(torch, dtype)).view(shape)
            for name, (dtype, shape, offset, size) in self.manifest.items()
        }


def decode_manifest(content: Any) -> tuple[Manifest, Any]:
    """The manifest, of its bytes in a slot, and what was written about it."""
    manifest, about = json.loads(bytes(content))
    return manifest, about


def too_little_memory(folder: Path, so_far: int, error: OSError) -> WeightsError:
    return WeightsError(
        f"weights need two slots of more than {so_far / 2**20:,.0f} MiB in {folder}, where there is less "
        f"({error.strerror}): make it larger (of a container: --shm-size)"
    )


def _bytes_of(tensor: Tensor) -> "memoryview[int]":
    """A tensor's bytes in host memory, wherever it is."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _write_at(file: int, content: "memoryview[int] | bytes", start: int) -> None:
    """By write and not through a mapping: memory that runs out is an error then, and does not kill the process."""
    left = memoryview(content)
    while left:
        written = os.pwrite(file, left, start)
        left, start = left[written:], start + written


def _read_all(readinto: Callable[[Any], int], room: "memoryview[int]") -> None:
    while room:
        if not (got := readinto(room)):
            raise OSError("it ended early")
        room = room[got:]
