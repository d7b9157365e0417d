"""Machines join, run what they are asked to, and end it when they or the controller are lost. The nodes are real
processes, `freerun node`, on the loopback address."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib import metadata
from pathlib import Path

import pytest

from freerun.core import ConfigError, MachineLost, ProcessDied
from freerun.machine.nodes import agent
from freerun.machine.nodes.agent import Join, serve
from freerun.machine.nodes.cluster import Cluster, NodeHost
from freerun.machine.nodes.key import KEY, run_key
from freerun.machine.nodes.messages import LOST_S
from freerun.machine.processes import Child

ECHO = "tests.machine.nodes.echo"
SECRET = "a key of thirty-two characters!!"


@asynccontextmanager
async def cluster(notes: list[str]) -> AsyncIterator[Cluster]:
    async with Cluster("127.0.0.1:0", SECRET.encode(), notes.append) as opened:
        yield opened


@asynccontextmanager
async def node(port: int, *options: str, key: str = SECRET) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "freerun.cli.main", "node", "--join", f"127.0.0.1:{port}", *options),
        env=os.environ | {KEY: key},
        stderr=PIPE,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.kill()
        await process.wait()


async def started(host: NodeHost, kind: str, tmp_path: Path) -> Child:
    return await host.start("worker", ECHO, [kind], {}, tmp_path / "worker.log")


async def gone(pid: int) -> None:
    """Wait for the end of a process that is not ours."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(watched, ended.set)
    try:
        await asyncio.wait_for(ended.wait(), 10)
    finally:
        asyncio.get_running_loop().remove_reader(watched)
        os.close(watched)


async def test_a_machine_runs_what_it_is_asked_to_and_says_how_it_ended(tmp_path: Path) -> None:
    notes: list[str] = []
    async with cluster(notes) as opened, node(opened.port, "--name", "a"):
        [host] = await opened.joined(1, 20)
        assert host.machine.name == "a"
        assert host.machine.processors == len(os.sched_getaffinity(0))
        child = await started(host, "stays", tmp_path)
        pid, key = (await child.ready()).split()
        assert key == run_key(SECRET.encode(), opened.run) == opened.key, "it never travelled"
        assert SECRET not in Path(f"/proc/{pid}/cmdline").read_text()
        with pytest.raises(ConfigError, match=r"train\.lr: is too high"):
            await (await started(host, "refuses", tmp_path)).ready()
        failing = await started(host, "fails", tmp_path)
        await failing.ready()
        await failing.wait()
        died = failing.died()
        assert isinstance(died, ProcessDied)
        assert "worker (on a) process ended with code 1" in died.message
        assert "the cause" in died.detail
        assert "ValueError: the cause" in (tmp_path / "worker.log").read_text(), "the log is here too"
        await child.end()
        await gone(int(pid))
        assert host.clock.ours(5.0) == pytest.approx(5.0, abs=0.05), "it is the same machine"


async def test_what_runs_on_a_node_ends_when_the_controller_goes(tmp_path: Path) -> None:
    notes: list[str] = []
    async with cluster(notes) as opened, node(opened.port) as process:
        [host] = await opened.joined(1, 20)
        child = await started(host, "stays", tmp_path)
        pid = int((await child.ready()).split()[0])
        await opened.__aexit__(None)
        await gone(pid)
        assert await asyncio.wait_for(process.wait(), 10) == 0
        assert process.stderr
        assert b"the run has ended" in await process.stderr.read()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_lost_node_is_noticed_its_processes_end_and_another_takes_its_place(
    number: signal.Signals, tmp_path: Path
) -> None:
    """A stopped node cannot end anything: its processes do it themselves."""
    notes: list[str] = []
    async with cluster(notes) as opened, node(opened.port, "--name", "a") as process:
        [host] = await opened.joined(1, 20)
        child = await started(host, "stays", tmp_path)
        pid = int((await child.ready()).split()[0])
        began_s = asyncio.get_running_loop().time()
        process.send_signal(number)
        await asyncio.wait_for(child.wait(), LOST_S + 1.5)
        assert asyncio.get_running_loop().time() - began_s < LOST_S + 1.5
        assert isinstance(child.died(), MachineLost)
        with pytest.raises(MachineLost, match=r"machine a .* is lost"):
            await started(host, "stays", tmp_path)
        await gone(pid)
        async with node(opened.port, "--name", "b"):
            back = await asyncio.wait_for(opened.host("a"), 20)
            assert back is not host
            assert any("is back" in note for note in notes)
            other = await started(back, "stays", tmp_path)
            await other.ready()


async def refusal(port: int, *options: str, key: str = SECRET) -> str:
    async with node(port, *options, key=key) as process:
        assert process.stderr
        said = (await asyncio.wait_for(process.stderr.read(), 20)).decode()
        assert await process.wait() == 2
        assert len(said.strip().splitlines()) == 1, said
        return said


async def test_bad_input_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    async with cluster(notes) as opened:
        assert "another key" in await refusal(opened.port, key="another key of many characters")
        assert any("was not admitted" in note for note in notes)
        assert "FREERUN_KEY has 5 characters" in await refusal(opened.port, key="short")
        assert "openssl rand" in await refusal(opened.port, key="")
        with pytest.raises(ConfigError, match=r"resources\.machines is 1, and after 0 s 0 have joined"):
            await opened.joined(1, 0.1)
        with pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1:.* set cluster\.listen"):
            async with Cluster(f"127.0.0.1:{opened.port}", SECRET.encode(), notes.append):
                pass
        monkeypatch.setattr("freerun.machine.nodes.cluster.metadata.version", lambda _: "0.0.9")
        port = opened.port
        assert "the controller has Freerun 0.0.9" in await refusal(port)
    assert "no controller at 127.0.0.1" in await refusal(port, "--wait-s", "0")


async def test_machines_that_join_at_the_same_time_have_different_names(tmp_path: Path) -> None:
    """They may all call themselves the same."""
    notes: list[str] = []
    async with cluster(notes) as opened, AsyncExitStack() as nodes:
        for _ in range(3):
            await nodes.enter_async_context(node(opened.port, "--name", "a"))
        hosts = await opened.joined(3, 30)
        assert {host.machine.name for host in hosts} == {"a", "a-2", "a-3"}
        pids = [await (await started(host, "stays", tmp_path)).ready() for host in hosts]
        assert len({pid.split()[0] for pid in pids}) == 3


async def test_a_node_that_stays_ends_when_told_to_just_as_a_run_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    ending, release = asyncio.Event(), asyncio.Event()

    async def until_silent(*_: object) -> None:
        """What else a node does while a run goes on takes a moment to end."""
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await release.wait()

    monkeypatch.setattr(agent, "until_silent", until_silent)
    async with cluster([]) as opened:
        joins = Join("127.0.0.1", opened.port, SECRET.encode(), metadata.version("freerun"), "a", None, 20, stays=True)
        serving = asyncio.create_task(serve(joins, lambda said: None))
        await opened.joined(1, 20)
    await asyncio.wait_for(ending.wait(), 20)
    serving.cancel()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(serving, 10)
