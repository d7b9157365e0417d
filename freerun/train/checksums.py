"""Whether files are still what was written: a size and a checksum of each, in a file beside them. No torch.

Written on the thread that writes a checkpoint, when all else of it is on the disk's way; read when a run goes on.
"""

from pathlib import Path

import msgspec
import xxhash

CHECKSUMS = "checksums.json"
_CHUNK = 1 << 23

Sums = dict[str, tuple[int, str]]
"""File, as a path inside the folder → its size in bytes, and its XXH3 of 64 bits."""


def write_checksums(folder: Path) -> None:
    sums = {str(file.relative_to(folder)): _sum(file) for file in sorted(folder.rglob("*")) if file.is_file()}
    (folder / CHECKSUMS).write_bytes(msgspec.json.format(msgspec.json.encode(sums)) + b"\n")


def what_is_damaged(folder: Path) -> str | None:
    """In a few words; None where every file is what it was, or where there are no checksums: older ones have none."""
    try:
        if not (folder / CHECKSUMS).exists():
            return None
        sums = msgspec.json.decode((folder / CHECKSUMS).read_bytes(), type=Sums)
        for name, (size, checksum) in sums.items():
            file = folder / name
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != size:
                return f"{name} has {file.stat().st_size:,} bytes instead of {size:,}"
            if _sum(file)[1] != checksum:
                return f"{name} is not what was written"
    except (OSError, msgspec.DecodeError) as error:
        return f"it cannot be read ({error})"
    return None


def _sum(file: Path) -> tuple[int, str]:
    digest, size = xxhash.xxh3_64(), 0
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()
