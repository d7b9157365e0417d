"""Engine and trainer on one real GPU: under MPS, with their memory divided, and nothing left behind however it ends."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from freerun.commands.demo import LETTERS, write_tasks  # noqa: E402
from freerun.commands.doctor import examine  # noqa: E402
from freerun.machine.mps import Mps, running_daemons  # noqa: E402
from freerun.machine.scratch import scratch_folder  # noqa: E402
from freerun.models.tiny import make_model  # noqa: E402
from freerun.observe.records import read_steps  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
needs_mps = pytest.mark.skipif(shutil.which("nvidia-cuda-mps-control") is None, reason="needs MPS")


def used_mib() -> int:
    asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()[0])


def daemons() -> list[Path]:
    return [p for p in Path("/proc").glob("[0-9]*") if "nvidia-cuda-mps" in _comm(p)]


def _comm(process: Path) -> str:
    try:
        return (process / "comm").read_text()
    except OSError:
        return ""


@needs_mps
def test_a_daemon_of_our_own() -> None:
    async def use() -> None:
        with scratch_folder() as folder:
            async with Mps(folder / "mps") as mps:
                assert running_daemons(folder / "mps")
                assert mps.environment(high_priority=True)["CUDA_MPS_CLIENT_PRIORITY"] == "0"
            assert not running_daemons(folder / "mps")

    asyncio.run(use())


def test_the_doctor_tries_the_gpu() -> None:
    found = {finding.what: finding.ok for finding in examine()}
    assert [ok for what, ok in found.items() if "CUDA IPC" in what] == [True], found
    if shutil.which("nvidia-cuda-mps-control"):
        assert [ok for what, ok in found.items() if "MPS" in what] == [True], found


@pytest.fixture
def run(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A run of many steps, with engine and trainer on the GPU."""
    make_model(tmp_path / "model", LETTERS + ">", seed=0)
    write_tasks(tmp_path, seed=0)
    (tmp_path / "run.yaml").write_text("control: {steps: 100000}\n")
    command = [sys.executable, "-m", "freerun.cli.main", "train", "run.yaml", "model.path=model", "reward.judge=exact"]
    command += ["data.source=train.jsonl", "data.max_prompt_tokens=16", "rollout.max_new_tokens=8"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


def after_steps(run: "subprocess.Popen[bytes]", folder: Path, steps: int) -> None:
    deadline_s = time.monotonic() + 120
    while not (folder / "metrics.jsonl").is_file() or len(read_steps(folder / "metrics.jsonl")) < steps:
        assert run.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def child(kind: str) -> int:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"freerun.run.child" in arguments and kind.encode() in arguments:
            return int(process.name)
    raise AssertionError(f"there is no {kind}")


@needs_mps
@pytest.mark.parametrize(
    ("killed", "says"), [("engine", "engine 0 joins, with version"), ("trainer", "killed by SIGKILL; it goes on from")]
)
def test_a_killed_process_is_started_again_beside_the_other(
    killed: str, says: str, run: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "run"
    after_steps(run, folder, 3)
    os.kill(child(killed), signal.SIGKILL)
    deadline_s = time.monotonic() + 120
    while says not in (folder / "notes.jsonl").read_text():
        assert run.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    after_steps(run, folder, len(read_steps(folder / "metrics.jsonl")) + 3)


@needs_mps
def test_kill_9_leaves_nothing_on_the_gpu(run: "subprocess.Popen[bytes]", tmp_path: Path) -> None:
    before = used_mib()
    after_steps(run, tmp_path / "runs" / "run", 3)
    assert daemons()
    os.kill(run.pid, signal.SIGKILL)
    start_s = time.monotonic()
    run.wait(30)
    while daemons() or used_mib() > before + 100:
        assert time.monotonic() - start_s < 30
        time.sleep(0.1)
