"""A slot: a file in a memory-backed folder that holds some tensors of one version.

It is written by one process and read by any. Its header names version and checksum only while the rest is complete; a
reader copies, checks the copy against the checksum, and so never sees half a version, whichever process dies when.
Shared memory is slots that everybody reads in place; TCP brings a slot's bytes to another machine's slot.

    slot file:  magic | version | checksum | payload length | manifest length | payload | manifest (JSON)

A slot's file never shrinks, so it can be mapped without fear of a crash; what is behind the manifest does not count.
The manifest comes last, since tensors may be gathered as they are written. The checksum covers payload and manifest: it
is the hash of the hashes of their blocks, so that whoever moves a block can hash it while it is at hand, in any order.
"""

import json
import mmap
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

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
BLOCK = 1 << 20

Manifest = dict[str, tuple[str, list[int], int, int]]
"""Where each tensor lies in the payload: name → type, shape, offset, bytes."""


Bytes: TypeAlias = "memoryview[int] | bytes"


class Checksum:
    """Over bytes that come one after another."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._block = xxhash.xxh3_64()
        self._room = BLOCK

    def update(self, content: Bytes) -> None:
        left = memoryview(content)
        while left:
            piece, left = left[: self._room], left[self._room :]
            self._block.update(piece)
            self._room -= len(piece)
            if not self._room:
                self._end_block()

    def _end_block(self) -> None:
        self._blocks.append(self._block.digest())
        self._block.reset()
        self._room = BLOCK

    def value(self) -> int:
        last = [self._block.digest()] if self._room < BLOCK else []
        return checksum_of_blocks([*self._blocks, *last])


def block_hash(block: Bytes) -> bytes:
    return xxhash.xxh3_64_digest(block)


def checksum_of_blocks(hashes: Sequence[bytes]) -> int:
    return xxhash.xxh3_64_intdigest(b"".join(hashes))


def checksum_of(content: Bytes) -> int:
    checksum = Checksum()
    checksum.update(content)
    return checksum.value()


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
        file, checksum, offset = self._file, Checksum(), 0
        manifest: Manifest = {}

        def put(content: Bytes) -> None:
            nonlocal offset
            write_at(file, content, HEADER_BYTES + offset)
            checksum.update(content)
            offset += len(content)

        try:
            write_at(file, SlotHeader().encoded(), 0)
            for name, tensor in tensors:
                content = _bytes_of(tensor)
                kind = str(tensor.dtype).removeprefix("torch.")
                manifest[name] = (kind, list(tensor.shape), offset, len(content))
                put(content)
                put(bytes(-offset % _ALIGNMENT))
            payload_bytes = offset
            put(json.dumps([manifest, about]).encode())
            put(b" " * (-offset % _ALIGNMENT))
            header = SlotHeader(version, checksum.value(), payload_bytes, offset - payload_bytes)
            write_at(file, header.encoded(), 0)
        except OSError as error:
            raise too_little_memory(self.path.parent, offset, error) from None
        return header


class MappedSlots:
    """Slots as memory, each mapped once: to map one takes nearly as long as to receive it."""

    def __init__(self) -> None:
        self._maps: dict[Path, tuple[tuple[int, int], memoryview[int]]] = {}

    def room(self, path: Path, size: int = 0) -> "memoryview[int]":
        """A slot of at least that size. It is allocated now: beyond the memory that there is, writing would kill."""
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                if os.fstat(file).st_size < size:
                    os.posix_fallocate(file, 0, size)
                found = os.fstat(file)
                now, held = (found.st_ino, found.st_size), self._maps.get(path)
                if held is None or held[0] != now:
                    held = now, memoryview(mmap.mmap(file, 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE))
                    self._maps[path] = held
                return held[1]
            finally:
                os.close(file)
        except OSError as error:
            raise too_little_memory(path.parent, size, error) from None


class SlotReader:
    """Reads a slot of any writer."""

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
                if os.fstat(file.fileno()).st_size < header.size:
                    raise WeightsError(f"version {version} at {self.path} is damaged: it is cut short")
                content = torch.empty(header.size - HEADER_BYTES, dtype=torch.uint8)
                arrived = _read_all(file.readinto, content.numpy().data)
        except OSError as error:
            raise WeightsError(f"version {version} is not at {self.path}: {error}") from None
        if arrived != header.checksum:
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


def write_at(file: int, content: Bytes, start: int) -> None:
    """By write and not through a mapping: memory that runs out is an error then, and does not kill the process."""
    left = memoryview(content)
    while left:
        written = os.pwrite(file, left, start)
        left, start = left[written:], start + written


def _read_all(readinto: Callable[[Any], int], room: "memoryview[int]") -> int:
    """Returns the checksum of what was read."""
    checksum = Checksum()
    while room:
        if not (got := readinto(room[:BLOCK])):
            raise OSError("it ended early")
        checksum.update(room[:got])
        room = room[got:]
    return checksum.value()
