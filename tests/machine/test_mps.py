"""The MPS daemon's supervisor, with a stand-in for the daemon: what is tested is who ends when. The daemon itself is in
tests/run/test_one_gpu.py."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from freerun.machine.mps import Mps, MpsRefused, running_daemons, use_the_gpu

SUPERVISOR = """
import sys
from pathlib import Path
from freerun.machine import mps
mps._END_S = 0.2
mps._failure = lambda *_: None
mps.supervise(Path(sys.argv[1]))
"""
PARENT = """
import subprocess, sys, time
supervisor = subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1]], stdin=subprocess.PIPE)
time.sleep(1000)
"""


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of the daemon's name that runs until it is killed, whatever it is told."""
    program = tmp_path / "bin" / "nvidia-cuda-mps-control"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nimport sys, time\nif '-f' in sys.argv: time.sleep(1000)\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr("freerun.machine.mps._END_S", 0.2)
    return tmp_path / "mps"


def until(says: bool, folder: Path) -> None:
    deadline_s = time.monotonic() + 20
    while bool(running_daemons(folder)) is not says:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_the_daemon_ends_with_the_run_even_by_kill_9(daemon: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(daemon), SUPERVISOR])
    try:
        until(True, daemon)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    until(False, daemon)


def test_where_cuda_does_not_work_the_reason_is_told_and_nothing_is_left(daemon: Path) -> None:
    async def attempt() -> None:
        async with Mps(daemon):
            pytest.skip("needs a machine without a GPU")

    with pytest.raises(MpsRefused, match=r"libcuda|CUDA fails"):
        asyncio.run(attempt())
    assert running_daemons(daemon) == []


@pytest.mark.parametrize(("servers", "through_it"), [("", False), ("4711", True)])
def test_a_gpu_that_works_without_the_daemon_is_not_enough(
    servers: str, through_it: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for the driver's library, whose every call succeeds."""
    library = type("Library", (), {"__getattr__": lambda self, name: lambda *arguments: 0})
    monkeypatch.setattr("ctypes.CDLL", lambda name: library())
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text(f"#!/bin/sh\necho {servers}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    if through_it:
        use_the_gpu()
    else:
        with pytest.raises(SystemExit, match="not through it"):
            use_the_gpu()


def test_without_the_program_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "comes with NVIDIA's driver" in (Mps.missing() or "")

    async def attempt() -> None:
        async with Mps(tmp_path):
            pass

    with pytest.raises(MpsRefused, match="not installed"):
        asyncio.run(attempt())
