"""`freerun doctor`: what this machine can do, found out by trying."""

import asyncio
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
from typing import TYPE_CHECKING

from freerun.machine.device import any_gpu
from freerun.machine.gpus import visible_gpus
from freerun.machine.host import processors
from freerun.machine.mps import Mps, MpsRefused
from freerun.machine.scratch import memory_folder, scratch_folder

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


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
    gpu = _gpu()
    yield gpu
    if gpu.ok and visible_gpus():
        yield _gpu_memory()
        yield _sharing()
        yield _handing_over()
    yield _shared_memory()
    yield _loopback()
    yield _disk()
    yield _isolation()
    for name, why in (
        ("datasets", "Hugging Face datasets"),
        ("reasoning_gym", "reasoning-gym tasks"),
        ("verifiers", "tasksets of verifiers"),
    ):
        yield _extra(name.replace("_", "-"), why, find_spec(name) is not None)


def _python() -> Finding:
    return Finding(sys.version_info[:2] in ((3, 11), (3, 12)), f"Python {platform.python_version()} (3.11 or 3.12)")


def _package(name: str, least: str) -> Finding:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(False, f"{name} is not installed: pip install '{name}>={least}'")
    enough = tuple(map(int, version.split("+")[0].split(".")[:2])) >= tuple(map(int, least.split(".")))
    return Finding(enough, f"{name} {version} ({least} or newer)")


def _extra(name: str, why: str, installed: bool) -> Finding:
    return Finding(installed, f"{why} ({name})" if installed else f"no {why}: pip install 'freerun[{name}]'")


def _cores() -> Finding:
    cores = processors()
    needs = "generation and training overlap" if cores > 1 else "generation and training share one core: use 2 or more"
    return Finding(cores > 1, f"{cores} CPU core(s): {needs}")


def _gpu() -> Finding:
    import torch

    if not torch.cuda.is_available() and any_gpu():
        return Finding(
            False,
            "there is a GPU, but torch cannot use it: install a torch that is built for CUDA, or hide it with "
            "CUDA_VISIBLE_DEVICES=",
        )
    if not torch.cuda.is_available():
        return Finding(False, "no GPU that torch can use: runs are on the CPU, for models of a few million parameters")
    names = {torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())}
    return Finding(
        True, f"{torch.cuda.device_count()} GPU(s) ({', '.join(names)}): three quarters generate and the rest trains"
    )


def _gpu_memory() -> Finding:
    """Nine tenths of what the driver calls free, really taken."""
    import torch

    free, total = torch.cuda.mem_get_info()
    try:
        held = torch.empty(int(0.9 * free), dtype=torch.uint8, device="cuda").fill_(1)
    except torch.OutOfMemoryError:
        return Finding(False, f"the driver calls {free / 2**30:.1f} GiB of the GPU free, but allocating them fails")
    del held
    torch.cuda.empty_cache()
    busy = "" if free > 0.9 * total else ": other programs use it"
    return Finding(not busy, f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB of the GPU's memory free{busy}")


def _sharing() -> Finding:
    """A daemon of our own, and a process under it."""

    async def attempt() -> None:
        with scratch_folder() as folder:
            async with Mps(folder / "mps"):
                pass

    try:
        asyncio.run(attempt())
    except MpsRefused as why:
        return Finding(False, f"no MPS ({why}): on one GPU, engine and trainer take turns")
    return Finding(True, "MPS: on one GPU, engine and trainer run at the same time")


def _handing_over() -> Finding:
    """A tensor of another process on the same GPU."""
    import multiprocessing

    import torch

    from freerun.core import WeightsError
    from freerun.weights.ipc import IpcSubscriber

    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    other = multiprocessing.get_context("spawn").Process(target=publish_ones, args=(theirs,), daemon=True)
    other.start()
    try:
        if not ours.poll(60):
            return Finding(False, "weights by CUDA IPC: the other process did not answer in a minute")
        subscriber, handle = IpcSubscriber(), ours.recv()
        got = subscriber.fetch(handle)
        subscriber.confirm(handle)
        return Finding(bool((got["w"] == 1).all()), "weights from process to process within the GPU (CUDA IPC)")
    except (EOFError, RuntimeError, WeightsError) as error:
        return Finding(False, f"weights by CUDA IPC: {str(error).splitlines()[0]}; containers need --ipc=host for it")
    finally:
        ours.send(None)
        other.join(10)
        torch.cuda.empty_cache()


def publish_ones(pipe: "Connection") -> None:
    """The other process: publishes, and stays until it is told to end."""
    import torch

    from freerun.weights.ipc import IpcPublisher

    publisher = IpcPublisher()
    pipe.send(publisher.publish(0, {"w": torch.ones(1_000_000, device="cuda")}))
    pipe.recv()


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


def _isolation() -> Finding:
    """A sandbox, really started, from which a program of ours has tried to escape."""
    from freerun.core import ConfigError
    from freerun.sandbox.sandbox import Sandbox

    try:
        with Sandbox() as sandbox:
            speed = "" if sandbox.reuses_container else ", a new one for every run (slower)"
            return Finding(True, f"judging code, isolated by {sandbox.backend}{speed}")
    except ConfigError as refusal:
        return Finding(False, str(refusal))
