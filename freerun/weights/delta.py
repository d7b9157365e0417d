"""What changed from one version of a slot to the next: for slow links, since most elements of bf16 weights stay the
same in a step of training.

A delta is a slot, too. For each tensor that changed it has the changed elements' places, as the number of elements
between one and the next, and their new values, both without a loss. Elements are compared by their bits. The numbers
are 1, 2 or 4 bytes wide, whichever makes the delta smaller; where more elements lie between than such a number can say,
one that did not change is sent along.

Whoever holds the version before makes the new one from it, and uses it only with the new one's own checksum.
"""

from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from freerun.core import Version, WeightsError
from freerun.weights.slot import (
    HEADER_BYTES,
    Manifest,
    MappedSlots,
    SlotContent,
    SlotHeader,
    SlotReader,
    SlotWriter,
    checksum_of,
    decode_manifest,
)

Elements = NDArray[np.unsignedinteger[Any]]
_CHUNK = 1 << 24
"""Elements that are compared at a time."""
_STILL_S = 1.0
"""How often somebody who waits for a delta is told that it is being made."""


class Deltas:
    """The deltas of a publisher. Each is made beside whatever follows its publication, and is offered only where it is
    smaller than the whole."""

    def __init__(self, folder: Path, part: int) -> None:
        self._writers = [SlotWriter(folder / f"weights-{part}-delta-{which}") for which in range(2)]
        self._making: Thread | None = None
        self._offered: dict[Version, Path] = {}

    def finish(self) -> None:
        """Before the slots that are compared are written again."""
        if self._making:
            self._making.join()

    def begin(self, version: Version, before: Path, now: Path) -> None:
        """From what `before` holds to that version, which `now` holds."""
        self._offered = {kept: path for kept, path in self._offered.items() if kept == version - 1}
        self._making = Thread(target=self._make, args=(version, before, now), name="delta", daemon=True)
        self._making.start()

    def path(self, version: Version, wait: Callable[[], None]) -> Path | None:
        """Where the delta to that version is, if there is one; `wait` is called now and then until that is known."""
        while self._making and self._making.is_alive() and version not in self._offered:
            self._making.join(_STILL_S)
            wait()
        return self._offered.get(version)

    def _make(self, version: Version, before: Path, now: Path) -> None:
        writer = self._writers[version % 2]
        if write_delta(before, now, writer):
            self._offered[version] = writer.path


def write_delta(before: Path, now: Path, writer: SlotWriter) -> bool:
    """Whether there is one: both slots hold the same tensors, and the delta is smaller than the whole."""
    base, new = SlotReader(before).header(), SlotReader(now).header()
    if min(base.version, new.version) < 0:
        return False
    (old_bytes, layout), (new_bytes, same_layout) = _content(before, base), _content(now, new)
    if layout != same_layout:
        return False
    changes: dict[str, torch.Tensor] = {}
    size = 0
    for name, (dtype, _, offset, length) in layout.items():
        kind = np.dtype(f"u{getattr(torch, dtype).itemsize}")
        gaps, values = encode(*(content[offset : offset + length].view(kind) for content in (old_bytes, new_bytes)))
        size += gaps.nbytes + values.nbytes
        if size >= new.payload_bytes:
            return False
        if len(gaps):
            changes |= {f"{name}/gaps": torch.from_numpy(gaps), f"{name}/values": torch.from_numpy(values)}
    about = [base.version, base.hex, new.version, new.checksum, new.payload_bytes, new.manifest_bytes]
    writer.write(new.version, changes.items(), about)
    return True


def apply_delta(delta: SlotContent, before: Path, now: Path, slots: MappedSlots) -> None:
    """Make the slot `now` from the one before and what changed; or raise WeightsError, and leave it incomplete."""
    base_version, base_checksum, *result = delta.about
    base, new = SlotReader(before).header(), SlotHeader(*result)
    if (base.version, base.hex) != (base_version, base_checksum) or base.size != new.size:
        raise WeightsError(f"version {new.version} changes version {base_version}, which is not here")
    room = slots.room(now, new.size)[: new.size]
    room[:HEADER_BYTES] = SlotHeader().encoded()
    room[HEADER_BYTES:] = slots.room(before)[HEADER_BYTES : new.size]
    whole = np.frombuffer(room[HEADER_BYTES:], np.uint8)
    layout, _ = decode_manifest(whole[new.payload_bytes :])
    changes = {name: tensor.numpy() for name, tensor in delta.tensors().items()}
    for name in {change.rpartition("/")[0] for change in changes}:
        _, _, offset, length = layout[name]
        gaps, values = changes[f"{name}/gaps"], changes[f"{name}/values"]
        decode(gaps, values, whole[offset : offset + length].view(values.dtype))
    if checksum_of(whole.data) != new.checksum:
        raise WeightsError(f"version {new.version} is not what its changes make of version {base_version}")
    room[:HEADER_BYTES] = new.encoded()


def encode(old: Elements, new: Elements) -> tuple[Elements, Elements]:
    """How many elements lie before each one that is sent, since the last; and the values of those."""
    changed = np.concatenate(
        [np.flatnonzero(old[at : at + _CHUNK] != new[at : at + _CHUNK]) + at for at in range(0, len(new), _CHUNK)]
        or [np.empty(0, np.int64)]
    )
    between = np.diff(changed, prepend=-1) - 1

    def size(width: int) -> int:
        return int(len(changed) + (between >> 8 * width).sum()) * (width + new.itemsize)

    width = min((1, 2, 4), key=size)
    places = _within_reach(changed, between, 1 << 8 * width)
    gaps = (np.diff(places, prepend=-1) - 1).astype(f"u{width}")
    return gaps, new[places]


def decode(gaps: Elements, values: Elements, old: Elements) -> None:
    """Make it the new one. Places beyond its end are refused by numpy: the delta's checksum was right, so none are."""
    old[np.cumsum(gaps.astype(np.int64) + 1) - 1] = values


def _within_reach(changed: NDArray[np.int64], between: NDArray[np.int64], reach: int) -> NDArray[np.int64]:
    """With those added that make every step at most `reach` long."""
    added = between // reach
    ends = np.cumsum(added + 1)
    step = np.arange(1, ends[-1] + 1 if len(ends) else 1) - np.repeat(ends - added - 1, added + 1)
    places: NDArray[np.int64] = np.repeat(changed - between - 1, added + 1) + step * reach
    places[ends - 1] = changed
    return places


def _content(path: Path, header: SlotHeader) -> tuple[NDArray[np.uint8], Manifest]:
    whole = np.memmap(path, np.uint8, "r", HEADER_BYTES, (header.size - HEADER_BYTES,))
    manifest, _ = decode_manifest(whole[header.payload_bytes :])
    return whole, manifest
