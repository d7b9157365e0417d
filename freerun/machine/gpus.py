"""The GPUs of this machine, asked of the driver through NVML: torch would open a context on each just to count them."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Gpu:
    uuid: str
    name: str
    total: int
    """Bytes."""
    free: int

    def __str__(self) -> str:
        return f"{self.name}, {self.total / 2**30:.1f} GiB"


@dataclass(frozen=True)
class UnknownMemory:
    """A GPU whose memory the driver does not tell: it is the machine's, and not to be divided."""

    uuid: str


def visible_gpus() -> list[Gpu]:
    """Those that this process may use, in its order: all, or what CUDA_VISIBLE_DEVICES names."""
    return chosen(_installed(), os.environ.get(_VISIBLE))


def are_untold() -> bool:
    """Whether there are GPUs of which the driver does not tell how much memory is theirs: parts of one (MIG), or those
    that share the machine's."""
    first, installed = os.environ.get(_VISIBLE, "0").split(",")[0].strip(), _installed()
    known = first.startswith("MIG-") or first in map(str, range(len(installed)))
    return bool(installed) and not chosen(installed, os.environ.get(_VISIBLE)) and known


def name_by_uuid() -> None:
    """Let CUDA_VISIBLE_DEVICES, where it is set, hold unique names instead of numbers, for this process and those that
    it starts. Numbers mean something else to processes under an MPS daemon that sees only some GPUs, and to CUDA, which
    counts the fastest first."""
    names = os.environ.get(_VISIBLE, "")
    if any(name.strip().isdigit() for name in names.split(",")) and (gpus := visible_gpus()):
        os.environ[_VISIBLE] = ",".join(gpu.uuid for gpu in gpus)


def memory_of_processes(uuid: str) -> dict[int, int]:
    """Bytes of that GPU that each process has, by the driver's number for it, which in a container is not ours; empty
    where the driver does not tell."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {}
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        found = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        return {one.pid: one.usedGpuMemory for one in found if one.usedGpuMemory}
    except pynvml.NVMLError:
        return {}
    finally:
        pynvml.nvmlShutdown()


def chosen(installed: Sequence[Gpu | UnknownMemory], names: str | None) -> list[Gpu]:
    """As CUDA reads that variable: indices or beginnings of uuids, up to the first that names no GPU."""
    gpus = {str(index): gpu for index, gpu in enumerate(installed) if isinstance(gpu, Gpu)}
    if names is None:
        return list(gpus.values())
    found = []
    for name in (part.strip() for part in names.split(",")):
        match = [gpu for index, gpu in gpus.items() if name and (index == name or gpu.uuid.startswith(name))]
        if not match:
            break
        found.append(match[0])
    return found


def _installed() -> list[Gpu | UnknownMemory]:
    """The GPUs by the driver's numbers; none without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return [_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def _gpu(nvml: Any, index: int) -> Gpu | UnknownMemory:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    uuid = _text(nvml.nvmlDeviceGetUUID, handle)
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError:
        return UnknownMemory(uuid)
    return Gpu(uuid, _text(nvml.nvmlDeviceGetName, handle), memory.total, memory.free)


def _text(ask: Callable[[Any], str | bytes], handle: Any) -> str:
    """Older releases of the package answer in bytes."""
    said = ask(handle)
    return said.decode() if isinstance(said, bytes) else said
