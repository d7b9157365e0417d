"""A version of the weights as a folder of Hugging Face safetensors, for servers that load from one."""

import shutil
from pathlib import Path
from typing import Literal

import torch

from freerun.core import EngineError
from freerun.core.reports import WeightsHandle
from freerun.models.checkpoint import empty_decoder, save_tensors
from freerun.models.shape import Shape
from freerun.weights.base import Subscriber


class VersionFolders:
    """Writes each version into a folder of its own in `scratch`, which is in shared memory where the server runs on
    this machine. In the type that the server computes in: half the bytes, where that is bfloat16."""

    def __init__(self, scratch: Path, shape: Shape, dtype: Literal["float32", "bfloat16"]) -> None:
        self._scratch = scratch
        self._shape = shape
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._sizes = {name: parameter.shape for name, parameter in empty_decoder(shape).named_parameters()}

    def write(self, handle: WeightsHandle, subscriber: Subscriber) -> Path:
        """Raises WeightsError, and EngineError for tensors of another model. What is returned is complete, and the
        caller's to `remove`."""
        tensors, folder = subscriber.fetch(handle), self._scratch / f"version-{handle.version}"
        sizes = {name: tensor.shape for name, tensor in tensors.items()}
        if odd := sorted(dict(sizes.items() ^ self._sizes.items())):
            raise EngineError(
                f"version {handle.version} is not of this model: {len(odd)} tensors differ, such as {odd[0]}"
            )
        try:
            save_tensors({name: tensor.to(self._dtype) for name, tensor in tensors.items()}, self._shape, folder)
            subscriber.confirm(handle)
        except BaseException:
            self.remove(folder)
            raise
        return folder

    def remove(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
