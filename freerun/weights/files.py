"""Weights through files: for processes that share only a file system. The slowest way, and the simplest."""

from collections.abc import Mapping
from pathlib import Path

import xxhash
from safetensors.torch import load, save
from torch import Tensor

from freerun.core import Version, WeightsError
from freerun.core.files import write_atomically
from freerun.core.reports import WeightsHandle
from freerun.weights.base import Subscriber


class FilePublisher:
    """Each version is a safetensors file that appears complete; the two newest are kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: list[Path] = []
        self._version: Version = -1

    def publish(self, version: Version, tensors: Mapping[str, Tensor]) -> WeightsHandle:
        if version <= self._version:
            raise WeightsError(f"versions only go up: {version} cannot follow {self._version}")
        content = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
        path = self._folder / f"version-{version}.safetensors"
        write_atomically(path, content)
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
            raise WeightsError(f"version {handle.version} is not at {handle.location}: {error}") from None
        if f"{xxhash.xxh3_64_intdigest(content):016x}" != handle.checksum:
            raise WeightsError(f"version {handle.version} at {handle.location} is damaged")
        return dict(load(content))
