"""The way in which a run's versions travel, chosen once, by what is configured and where trainer and engines are."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from freerun.core import ConfigError
from freerun.weights.config import WeightsConfig

Dtype = Literal["float32", "bfloat16"]
Base = Literal["own", "file", "lent"]
"""Where a process has the weights that do not change, of which versions are an adapter: in memory of its own, in a file
that the machine's processes map, or in GPU memory that the trainer lends (`common.py`)."""


@dataclass(frozen=True, slots=True)
class WeightsWay:
    """What publishers are made from: nothing is left to work out. It travels as JSON."""

    name: Literal["ipc", "shm", "tcp", "nccl", "files"]
    dtype: Dtype | None = None
    """The engines' own: what is wider is published in it, since they would round it to that anyway."""
    deltas: bool = False
    folder: str = ""
    adapter: bool = False
    """Versions are of an adapter alone: engines have its base, and compute with both."""


def choose_way(
    config: WeightsConfig,
    ranks: Sequence[str],
    engines: Collection[str],
    device: str,
    engine_dtype: Dtype | None = None,
    engines_on_gpus: bool = False,
    adapter: bool = False,
) -> WeightsWay:
    """`ranks` and `engines` are the machines they are on; `device` is the trainer's. Engines that may join later count
    too. `engines_on_gpus`: whether the processes that fetch have GPUs; those in front of other engines have none.
    `adapter`: an adapter is all that is trained, and the engines compute with it."""
    one_machine = len({*ranks, *engines}) == 1
    name = config.way
    if name == "auto":
        if one_machine:
            name = "ipc" if device == "cuda" and len(ranks) == 1 else "shm"
        else:
            name = "nccl" if device == "cuda" and engines_on_gpus and not config.deltas else "tcp"
    if name == "shm" and not one_machine:
        raise ConfigError("weights.way is shm, but the run has several machines: use auto or tcp")
    if name == "ipc" and not (one_machine and device == "cuda" and len(ranks) == 1):
        raise ConfigError("weights.way is ipc, which needs one machine and a trainer with one GPU: use auto")
    if name == "files" and not config.folder:
        raise ConfigError("weights.way is files: set weights.folder to a folder that trainer and engines share")
    if config.deltas and config.way not in ("auto", "tcp"):
        raise ConfigError(f"weights.deltas works with TCP only, and weights.way is {config.way}: use auto or tcp")
    return WeightsWay(name, engine_dtype, config.deltas, config.folder or "", adapter)
