"""What this machine can do, found out by trying."""

import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from freerun.launch.scratch import memory_folder


@dataclass(frozen=True)
class Finding:
    ok: bool
    what: str

    @property
    def mark(self) -> str:
        return "[green]yes[/]" if self.ok else "[red]no [/]"


def examine() -> Iterator[Finding]:
    yield _python()
    yield from (_package(name, least) for name, least in (("torch", "2.11"), ("transformers", "5.17")))
    yield _cores()
    yield _gpu()
    yield _shared_memory()
    yield _loopback()
    yield _disk()
    for name, why in (("reasoning_gym", "reasoning-gym tasks"), ("datasets", "Hugging Face datasets")):
        yield Finding(find_spec(name) is not None, f"{why} ({name.replace('_', '-')})")


def _python() -> Finding:
    return Finding(sys.version_info[:2] in ((3, 11), (3, 12)), f"Python {platform.python_version()} (3.11 or 3.12)")


def _package(name: str, least: str) -> Finding:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(False, f"{name} is not installed: pip install '{name}>={least}'")
    enough = tuple(map(int, version.split("+")[0].split(".")[:2])) >= tuple(map(int, least.split(".")))
    return Finding(enough, f"{name} {version} ({least} or newer)")


def _cores() -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    needs = "generation and training overlap" if cores > 1 else "generation and training share one core: use 2 or more"
    return Finding(cores > 1, f"{cores} CPU core(s): {needs}")


def _gpu() -> Finding:
    import torch

    if not torch.cuda.is_available():
        return Finding(False, "no GPU that torch can use: runs are on the CPU, for models of a few million parameters")
    names = {torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())}
    return Finding(
        True, f"{torch.cuda.device_count()} GPU(s) ({', '.join(names)}): the engine uses one, the trainer train.ranks"
    )


def _shared_memory() -> Finding:
    """Weights through shared memory, really tried."""
    import torch

    from freerun.weights.shm import ShmPublisher, ShmSubscriber

    folder = memory_folder()
    free_gb = shutil.disk_usage(folder).free / 1e9
    with tempfile.TemporaryDirectory(dir=folder) as private:
        sent = {"w": torch.randn(1_000_000)}
        got = ShmSubscriber().fetch(ShmPublisher(Path(private)).publish(0, sent))
    return Finding(torch.equal(sent["w"], got["w"]), f"weights through {folder}, {free_gb:.1f} GB free")


def _loopback() -> Finding:
    try:
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
    except OSError as error:
        return Finding(False, f"a port on 127.0.0.1, for the engine: {error}")
    return Finding(True, "a port on 127.0.0.1, for the engine")


def _disk() -> Finding:
    free_gb = shutil.disk_usage(Path.cwd()).free / 1e9
    return Finding(free_gb > 1, f"{free_gb:.0f} GB free here, for runs and checkpoints")
