"""Real processes: what dies is noticed, and nothing outlives its parent."""

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from freerun.core import ConfigError, EngineError, ProcessDied
from freerun.engines.base import Sampling
from freerun.engines.http import HttpEngine
from freerun.machine.machines import LOOPBACK
from freerun.machine.processes import Processes
from freerun.machine.scratch import memory_folder, scratch_folder
from freerun.machine.stopped import is_stopped
from freerun.models.checkpoint import save_decoder
from freerun.run.child import EngineSettings
from tests.children import child_of
from tests.tiny import engine_settings, tiny_decoder, tiny_folder


async def test_a_process_that_cannot_start_says_why(tmp_path: Path) -> None:
    async with Processes("freerun.run.child", tmp_path) as processes:
        with pytest.raises(ConfigError, match=r"^model\.path: there is no folder .*nothing; give one with") as caught:
            await processes.start("engine 0", "engine", engine_settings(tmp_path / "nothing"), 1)
        assert caught.value.detail == "", "it is the user's mistake, and the line says all"
        with pytest.raises(ProcessDied, match=r"the engine 1 process ended with code 1; its log is") as died:
            await processes.start(
                "engine 1", "engine", EngineSettings(str(tmp_path), {"max_running": 0}, LOOPBACK, ""), 1
            )
    assert "max_running" in died.value.detail


async def test_a_death_is_noticed(tmp_path: Path) -> None:
    async with Processes("freerun.run.child", tmp_path) as processes:
        settings = engine_settings(tiny_folder(tmp_path / "model"))
        await processes.start("engine 0", "engine", settings, 1)
        os.kill(child_of(processes).process.pid, signal.SIGKILL)
        with pytest.raises(ProcessDied, match="was killed by SIGKILL"):
            await processes.watch()


async def test_what_is_stopped_for_too_long_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("freerun.machine.stopped.STOPPED_S", 0.5)
    async with Processes("freerun.run.child", tmp_path) as processes:
        child = await processes.begin("engine 0", "engine", engine_settings(tiny_folder(tmp_path / "model")), 1)
        url = await child.ready()
        pid = child_of(processes).process.pid
        os.kill(pid, signal.SIGSTOP)
        while not is_stopped(pid):
            os.sched_yield()
        os.kill(pid, signal.SIGCONT)
        async with HttpEngine(url) as engine:
            await engine.stats()
            os.kill(pid, signal.SIGSTOP)
            with pytest.raises(EngineError):
                await asyncio.wait_for(engine.stats(), 20)
        with pytest.raises(ProcessDied, match="was killed by SIGKILL"):
            await processes.watch()


async def test_a_model_that_computes_no_numbers_is_said_to_in_one_line(tmp_path: Path) -> None:
    decoder = tiny_decoder()
    decoder.embed.weight.data.fill_(float("nan"))
    save_decoder(decoder, tmp_path / "model")
    async with Processes("freerun.run.child", tmp_path) as processes:
        url = await processes.start("engine 0", "engine", engine_settings(tmp_path / "model"), 1)
        async with HttpEngine(url) as engine:
            with pytest.raises(EngineError):
                _ = [answer async for answer in engine.generate([3], Sampling(4), 2)]
        with pytest.raises(ProcessDied) as died:
            await processes.watch()
    said = "version 0 of the model computes what is not a number: its weights are damaged"
    assert str(died.value) == f"the engine 0 process ended with code 1: {said}"
    assert died.value.detail == ""


PARENT = """
import asyncio, sys
from pathlib import Path
from freerun.machine.processes import Processes
from tests.tiny import engine_settings

async def main():
    async with Processes("freerun.run.child", Path(sys.argv[1])) as processes:
        await processes.start("engine 0", "engine", engine_settings(Path(sys.argv[2])), 1)
        print(processes._children[0].process.pid, flush=True)
        await processes.watch()

asyncio.run(main())
"""


def test_children_die_with_a_parent_killed_by_kill_9(tmp_path: Path) -> None:
    model = tiny_folder(tmp_path / "model")
    command = [sys.executable, "-c", PARENT, str(tmp_path), str(model)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    watched = os.pidfd_open(child)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    import select

    assert select.select([watched], [], [], 5)[0], "the child outlived its parent by 5 s"
    os.close(watched)


def test_the_scratch_folder_goes_and_takes_dead_ones_along() -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    left = memory_folder() / f"freerun-{dead.pid}-left"
    left.mkdir()
    elsewhere = memory_folder() / f"freerun-{dead.pid}-elsewhere"
    elsewhere.mkdir()
    held = os.open(elsewhere, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with scratch_folder() as folder:
        assert folder.is_dir()
        assert not left.exists()
        assert elsewhere.is_dir(), "it is another container's, which has a process of that number"
        os.close(held)
        with scratch_folder():
            assert folder.is_dir(), "a living run's folder stays"
            assert not elsewhere.exists(), "that run has ended"
    assert not folder.exists()
