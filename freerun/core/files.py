"""Files and folders that appear complete or not at all, whoever is killed when.

Each is written beside its place as NAME.unfinished, and takes its place by a rename when it is complete. A reader sees
the old one or the new one. With `durable` it survives a power cut too: every byte is on the disk before the rename, and
the rename before the writer goes on.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

UNFINISHED = ".unfinished"


def write_atomically(path: Path, content: str | bytes, durable: bool = False) -> None:
    with atomic_file(path, durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def atomic_file(path: Path, durable: bool = False) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` after the block. If the block fails, it is removed."""
    unfinished = unfinished_of(path)
    try:
        with unfinished.open("wb") as file:
            yield file
        _put_in_place(unfinished, path, durable)
    except BaseException:
        if not unfinished.is_dir():
            unfinished.unlink(missing_ok=True)
        raise


@contextmanager
def atomic_folder(folder: Path, durable: bool = False) -> Iterator[Path]:
    """An empty folder to fill, which takes the place of `folder` after the block. If the block fails, it is removed."""
    unfinished = begin_folder(folder)
    try:
        yield unfinished
        complete_folder(folder, durable)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def begin_folder(folder: Path) -> Path:
    """An empty folder, to be filled and then completed; for a writer that cannot be one block of code."""
    unfinished = unfinished_of(folder)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    return unfinished


def complete_folder(folder: Path, durable: bool = False) -> None:
    """What was written since `begin_folder` takes the place of `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    _put_in_place(unfinished_of(folder), folder, durable)


def unfinished_of(path: Path) -> Path:
    return path.with_name(path.name + UNFINISHED)


def _put_in_place(unfinished: Path, path: Path, durable: bool) -> None:
    if durable:
        for written in [*unfinished.rglob("*"), unfinished]:
            _flush_to_disk(written)
    unfinished.replace(path)
    if durable:
        _flush_to_disk(path.parent)


def _flush_to_disk(path: Path) -> None:
    """Files and folders alike: a new name is safe only when its folder is on the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
