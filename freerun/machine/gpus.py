"""The GPUs of this machine, asked of the driver's own tool: torch would open a context on each just to count them."""

import os
import shutil
import subprocess
from dataclasses import dataclass

_FIELDS = "index,uuid,name,memory.total,memory.free"
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


def visible_gpus() -> list[Gpu]:
    """Those that this process may use, in its order: all, or what CUDA_VISIBLE_DEVICES names."""
    return chosen(_listed(), os.environ.get(_VISIBLE))


def are_untold() -> bool:
    """Whether there are GPUs of which the driver's tool does not tell how much memory is theirs: parts of one (MIG), or
    such as share the machine's."""
    first, listed = os.environ.get(_VISIBLE, "0").split(",")[0].strip(), _listed()
    told = [index for index, *_ in _fields(listed)]
    return bool(told) and not chosen(listed, os.environ.get(_VISIBLE)) and (first.startswith("MIG-") or first in told)


def _listed() -> str:
    if not (tool := shutil.which("nvidia-smi")):
        return ""
    asked = subprocess.run(
        [tool, f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits"], capture_output=True, text=True
    )
    return asked.stdout if asked.returncode == 0 else ""


def name_by_uuid() -> None:
    """Let CUDA_VISIBLE_DEVICES, where it is set, hold unique names instead of numbers, for this process and those that
    it starts. Numbers mean something else to processes under an MPS daemon that sees only some GPUs, and to CUDA, which
    counts the fastest first."""
    names = os.environ.get(_VISIBLE, "")
    if any(name.strip().isdigit() for name in names.split(",")) and (gpus := visible_gpus()):
        os.environ[_VISIBLE] = ",".join(gpu.uuid for gpu in gpus)


def chosen(listed: str, names: str | None) -> list[Gpu]:
    """As CUDA reads that variable: indices or beginnings of uuids, up to the first that names no GPU."""
    gpus: dict[str, Gpu] = {}
    for index, uuid, name, total, free in _fields(listed):
        if total.isdigit() and free.isdigit():  # else its memory is the machine's, and not to be divided
            gpus[index] = Gpu(uuid, name, int(total) * 2**20, int(free) * 2**20)
    if names is None:
        return list(gpus.values())
    found = []
    for name in (part.strip() for part in names.split(",")):
        match = [gpu for index, gpu in gpus.items() if name and (index == name or gpu.uuid.startswith(name))]
        if not match:
            break
        found.append(match[0])
    return found


def _fields(listed: str) -> list[tuple[str, str, str, str, str]]:
    """Of each GPU; a name may hold commas."""
    lines = [[field.strip() for field in line.split(",")] for line in listed.strip().splitlines()]
    return [(f[0], f[1], ",".join(f[2:-2]), f[-2], f[-1]) for f in lines if len(f) >= 5]
