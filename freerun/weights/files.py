"""Weights through files: for processes that share only a file system. The slowest way, and the simplest."""

from pathlib import Path

import xxhash
from safetensors.torch import load, save
from torch import Tensor

from freerun.core import Version, WeightsError
from freerun.core.files import write_atomically
from freerun.core.reports import WeightsHandle
from freerun.weights.base import Publisher, Subscriber, Tensors, each


class FilePublisher(Publisher):
    """Each version is a safetensors file that appears complete; the two newest are kept. `part` tells the ranks' apart.

    `folder` is one that the machines of trainer and engines share.
    """

    def __init__(self, folder: Path, part: int = 0) -> None:
        self._folder, self._part = folder, part
        self._kept: list[Path] = []
        self._version: Version = -1

    def publish(self, version: Version, tensors: Tensors) -> WeightsHandle:
        if version <= self._version:
            raise WeightsError(f"versions only go up: {version} cannot follow {self._version}")
        content = save({name: tensor.detach().cpu().contiguous() for name, tensor in each(tensors)})
        path = self._folder / f"version-{version}-{self._part}.safetensors"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content)
        except OSError as error:
            raise WeightsError(f"weights.folder: cannot write {path}: {error.strerror}") from None
        self._kept.append(path)
        while len(self._kept) > 2:
            self._kept.pop(0).unlink(missing_ok=True)
        self._version = version
        return WeightsHandle("files", version, str(path), f"{xxhash.xxh3_64_intdigest(content):016x}")


class FileSubscriber(Subscriber):
    def fetch(self, handle: WeightsHandle) -> dict[str, Tensor]:
        try:
            content = Path(handle.location).read_bytes()
        except OSError as error:
            raise WeightsError(
                f"version {handle.version} is not at {handle.location} ({error.strerror}): weights.folder must be one "
                "that trainer and engines share"
            ) from None
        if f"{xxhash.xxh3_64_intdigest(content):016x}" != handle.checksum:
            raise WeightsError(f"version {handle.version} at {handle.location} is damaged")
        return dict(load(content))
