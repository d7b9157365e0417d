"""NVIDIA's MPS: lets two processes use one GPU at the same time, where the driver alone would give them turns.

A run has a daemon of its own, with its own folders; neither the GPU's settings nor any other daemon is touched.
A supervisor, which is this module run as a program, starts the daemon; when the run ends, in whatever way, kill -9
included, it ends the daemon and whatever that has started.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from freerun.core import FreerunError
from freerun.machine.parent import announce_ready, announce_refusal, when_parent_ends
from freerun.machine.processes import ChildProcess

_DAEMON = "nvidia-cuda-mps-control"
_START_S, _END_S = 20.0, 5.0
_SUPERVISOR_END_S = 4 * _END_S
"""It asks the daemon to end, waits, and kills what is left."""
_NO_CUDA = 3


class Mps:
    """An async context manager: inside, a daemon runs. Raises MpsRefused where that does not work."""

    def __init__(self, folder: Path) -> None:
        """`folder` is private to the run, and its path short: sockets are made in it."""
        self._folder = folder

    @staticmethod
    def missing() -> str | None:
        """Why there can be no daemon here; None when there may be."""
        return None if shutil.which(_DAEMON) else f"{_DAEMON} is not installed; it comes with NVIDIA's driver"

    def environment(self, high_priority: bool) -> dict[str, str]:
        """For a process that is to share the GPU. The work of one with high priority goes before that of the others."""
        return _folders(self._folder) | {"CUDA_MPS_CLIENT_PRIORITY": "0" if high_priority else "1"}

    async def __aenter__(self) -> "Mps":
        if why := self.missing():
            raise MpsRefused(why)
        self._folder.mkdir(parents=True, exist_ok=True)
        log = self._folder / "supervisor.log"
        self._supervisor = await ChildProcess.start(
            "MPS supervisor", "freerun.machine.mps", str(self._folder), log=log, announces=True
        )
        try:
            await self._supervisor.ready()
        except FreerunError as why:
            raise MpsRefused(str(why)) from None
        except BaseException:
            self._supervisor.close_lifeline()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._supervisor.end(self._supervisor.close_lifeline, _SUPERVISOR_END_S)


class MpsRefused(FreerunError):
    """MPS does not work here; the message says why."""


def supervise(folder: Path) -> None:
    """Run a daemon until our parent ends or has had enough. Says whether it works, by trying."""
    environment = os.environ | _folders(folder)
    environment.pop("CUDA_MPS_CLIENT_PRIORITY", None)
    for place in _folders(folder).values():
        Path(place).mkdir(parents=True, exist_ok=True)
    daemon = subprocess.Popen([_DAEMON, "-f"], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    parent_ended = threading.Event()
    when_parent_ends(parent_ended.set)
    try:
        if why := _failure(environment, daemon):
            announce_refusal(MpsRefused(why))
            return
        announce_ready("MPS")
        while not parent_ended.wait(0.2) and daemon.poll() is None:
            pass
    finally:
        _end(daemon, folder, environment)


def _failure(environment: dict[str, str], daemon: "subprocess.Popen[bytes]") -> str | None:
    """Why the GPU cannot be used through the daemon; None if it can. A process of its own tries: a context on the GPU,
    memory there, and a server of the daemon that it goes through."""
    deadline_s, why = time.monotonic() + _START_S, "it did not start"
    while time.monotonic() < deadline_s and daemon.poll() is None:
        try:
            tried = subprocess.run(
                [sys.executable, "-m", "freerun.machine.mps", "--try"],
                env=environment, capture_output=True, text=True, timeout=_START_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "a process under its daemon hung"
        if tried.returncode == 0:
            return None
        if tried.returncode == _NO_CUDA:
            return "there is no libcuda here"
        why = (tried.stderr.strip().splitlines() or [f"code {tried.returncode}"])[-1]
        time.sleep(0.1)  # the daemon may not listen yet
    return f"its daemon ended with code {daemon.poll()}" if daemon.poll() is not None else f"CUDA fails under it: {why}"


def use_the_gpu() -> None:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        sys.exit(_NO_CUDA)
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    for call, arguments in (
        ("cuInit", (0,)),
        ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), 0)),
        ("cuCtxSetCurrent", (context,)),
        ("cuMemAlloc_v2", (ctypes.byref(memory), ctypes.c_size_t(2**20))),
    ):
        if code := getattr(cuda, call)(*arguments):
            sys.exit(f"{call} gave {code}")
    if not _ask("get_server_list", dict(os.environ)).strip():
        sys.exit("the GPU works, but not through it")


def _end(daemon: "subprocess.Popen[bytes]", folder: Path, environment: dict[str, str]) -> None:
    """Ask the daemon to end; then kill it and whatever it has started."""
    with suppress(subprocess.TimeoutExpired):
        _ask("quit -t 1", environment)
        daemon.wait(_END_S)
    for process in running_daemons(folder):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    daemon.wait()


def _ask(command: str, environment: dict[str, str]) -> bytes:
    """What the daemon of these folders replies."""
    return subprocess.run(
        [_DAEMON], input=f"{command}\n".encode(), env=environment, capture_output=True, timeout=_END_S
    ).stdout


def running_daemons(folder: Path) -> list[int]:
    """Daemons and servers of these folders, by their environment."""
    marker = f"CUDA_MPS_PIPE_DIRECTORY={_folders(folder)['CUDA_MPS_PIPE_DIRECTORY']}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_mps = (process / "comm").read_text().startswith("nvidia-cuda-mps")
            if is_mps and marker in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def _folders(folder: Path) -> dict[str, str]:
    return {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "log")}


if __name__ == "__main__":
    if sys.argv[1] == "--try":
        use_the_gpu()
    else:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends with its parent, not before
        supervise(Path(sys.argv[1]))
