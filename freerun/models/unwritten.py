"""Models without files of weights: a `config.json` that says so, and random weights, made where they are needed.

For benchmarks of large models: to write 64 GB and read them again takes minutes, a GPU makes them in a second. Whoever
loads such a folder gets the same numbers on the same kind of device, each tensor by its name, rounded to bfloat16 as
those of most published models are.
"""

import json
from pathlib import Path
from zlib import crc32

import torch
from torch import Tensor

from freerun.models.shape import Shape

MARK = "freerun_random_weights"
"""The key in a `config.json` that says so."""
_STD = 0.02


def write_unwritten(shape: Shape, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(shape.raw | {MARK: True}) + "\n")


def is_unwritten(shape: Shape) -> bool:
    return bool(shape.raw.get(MARK))


def made_up(name: str, size: torch.Size, device: str) -> Tensor:
    """The weights of that name: a matrix is normal, a norm 1, a bias 0."""
    weights = torch.empty(size, dtype=torch.bfloat16, device=device)
    if len(size) == 1:
        return weights.fill_(0.0 if name.endswith("bias") else 1.0)
    generator = torch.Generator(device).manual_seed(crc32(name.encode()))
    return weights.normal_(std=_STD, generator=generator)
