"""Whether there is a GPU to compute on. No torch: to import it takes seconds, and to ask it opens the GPU."""

import ctypes
from typing import Literal

from freerun.machine.gpus import visible_gpus

Device = Literal["cpu", "cuda"]


def choose_device(has_gpu: bool | None = None) -> Device:
    """A GPU if this process sees one. Callers that know whether there is one pass `has_gpu`."""
    found = any_gpu() if has_gpu is None else has_gpu
    return "cuda" if found else "cpu"


def any_gpu() -> bool:
    """One that is listed with its memory, or one that CUDA's driver finds: a slice of a GPU (MIG), one that shares the
    machine's memory, or any in a container that has the driver without its tools."""
    return bool(visible_gpus()) or _driver_finds_gpu()


def _driver_finds_gpu() -> bool:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
