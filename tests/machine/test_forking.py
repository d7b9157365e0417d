"""Real processes, forked from one that has imported what they need: each is as if it had been started by itself."""

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from freerun.bench.chaos_parts import parts_of
from freerun.bench.chaos_schedule import PartKind
from freerun.core import ProcessDied
from freerun.engines.base import Sampling
from freerun.engines.http import HttpEngine
from freerun.machine import forking
from freerun.machine.descendants import children
from freerun.machine.forking import Preloaded
from freerun.machine.processes import ChildProcess, Processes
from tests.children import child_of
from tests.tiny import engine_settings, tiny_folder

PROGRAM = "tests.machine.forked_program"


@pytest.fixture(autouse=True)
def preloaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[Any, Preloaded]]:
    """Those of the test alone."""
    own: dict[Any, Preloaded] = {}
    monkeypatch.setattr(forking, "_preloaded", own)
    yield own
    for one in own.values():
        one.end()


class Found:
    """What a child finds when it begins."""

    def __init__(self, said: str) -> None:
        self.born_s, self.parent, self.environment, self.leads_a_session, self.folder, self.looks_in = json.loads(said)


@asynccontextmanager
async def child(tmp_path: Path, *arguments: str, **environment: str) -> AsyncIterator[tuple[ChildProcess, Found]]:
    its_own = {"OMP_NUM_THREADS": "1", **environment}
    started = await ChildProcess.start_part("one", PROGRAM, arguments or ["waits"], its_own, tmp_path / "one.log", True)
    try:
        yield started, Found(await started.ready())
    finally:
        await started.end()


async def test_a_child_is_as_if_it_had_been_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preloaded: dict[Any, Preloaded]
) -> None:
    monkeypatch.setenv("TO_GO", "1")
    async with child(tmp_path) as (_, found):
        assert found.environment["TO_GO"] == "1"
    monkeypatch.delenv("TO_GO")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TO_COME", "é")
    async with child(tmp_path, "waits", "and more", OWN="2") as (one, found), child(tmp_path) as (_, other):
        assert found.born_s == other.born_s, "what it has imported was imported once"
        assert found.parent == other.parent == next(iter(preloaded.values())).pid
        assert {**os.environ, "TO_COME": "é", "OWN": "2"}.items() <= found.environment.items()
        assert not {"TO_GO", "OWN"} & other.environment.keys()
        assert found.leads_a_session
        assert found.folder == found.looks_in[0] == str(tmp_path)
        shown = Path(f"/proc/{one.process.pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        assert shown == [os.fsencode(sys.executable), b"-m", PROGRAM.encode(), b"waits"], "by ps"
        assert not descriptors(one) & descriptors_of(found.parent), "it holds nothing that belongs to another"
        assert one.log_tail().endswith("begins ['waits', 'and more']\nbegins ['waits']")


def descriptors(one: ChildProcess) -> set[str]:
    return descriptors_of(one.process.pid)


def descriptors_of(pid: int) -> set[str]:
    """Its pipes and sockets."""
    links = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")]
    return {link for link in links if link.startswith(("pipe:", "socket:"))}


@pytest.mark.parametrize("code", [0, 7])
async def test_how_a_child_ends_is_known(tmp_path: Path, code: int) -> None:
    async with child(tmp_path, "ends", str(code)) as (one, _):
        assert await one.process.wait() == code
    async with child(tmp_path) as (one, _):
        one.process.kill()
        await one.wait()
        assert "was killed by SIGKILL" in str(one.died())
    async with child(tmp_path) as (one, _):
        pass
    assert one.returncode == -signal.SIGTERM, "it was asked to end"


async def test_children_outlive_what_they_were_forked_from_and_their_end_is_noticed(
    tmp_path: Path, preloaded: dict[Any, Preloaded]
) -> None:
    async with child(tmp_path) as (one, found):
        os.kill(found.parent, signal.SIGKILL)
        (killed,) = preloaded.values()
        killed._process.wait(5)  # asked before that is known, it could not fork, and the child would start by itself
        async with child(tmp_path) as (_, other):
            assert other.parent not in (found.parent, os.getpid()), "it was forked from another"
        assert one.returncode is None
        one.process.kill()
        await asyncio.wait_for(one.wait(), 5)
        assert str(one.died()).startswith("the one process ended; its log is")


async def test_what_has_threads_is_not_forked_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preloaded: dict[Any, Preloaded]
) -> None:
    monkeypatch.setenv("THREADED", "at once")
    for _ in range(2):
        async with child(tmp_path) as (one, found):
            assert found.parent == os.getpid(), "it was started the usual way"
            assert found.environment["THREADED"] == "at once"
    assert len(preloaded) == 1, "and it was tried once"
    assert one.returncode == -signal.SIGTERM


async def test_what_gets_threads_later_still_tells_how_its_children_end(tmp_path: Path) -> None:
    async with child(tmp_path) as (one, found):
        os.kill(found.parent, signal.SIGUSR1)
        deadline = time.monotonic() + 5
        while len(os.listdir(f"/proc/{found.parent}/task")) == 1:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        async with child(tmp_path) as (_, other):
            assert other.parent == os.getpid(), "it was started the usual way"
        one.process.kill()
        await one.wait()
        assert one.returncode == -signal.SIGKILL


async def test_it_ends_when_it_has_had_nothing_to_do_and_another_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preloaded: dict[Any, Preloaded]
) -> None:
    async with child(tmp_path) as (_, found):
        pass
    (idle,) = preloaded.values()
    idle._process.terminate()  # as it would end itself: no child is left
    idle._process.wait()
    async with child(tmp_path) as (_, other):
        assert other.parent not in (found.parent, os.getpid())


async def test_another_is_used_for_what_is_read_when_libraries_are_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with child(tmp_path) as (_, one):
        monkeypatch.setenv("HF_HOME", str(tmp_path))
        async with child(tmp_path) as (_, other), child(tmp_path, OMP_NUM_THREADS="2") as (_, third):
            assert len({one.parent, other.parent, third.parent}) == 3


async def test_what_is_cancelled_before_it_is_there_leaves_nothing(tmp_path: Path) -> None:
    async with child(tmp_path) as (one, found):
        starting = asyncio.create_task(
            ChildProcess.fork("two", PROGRAM, ["waits"], {"OMP_NUM_THREADS": "1"}, tmp_path / "two.log")
        )
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        async with child(tmp_path):  # a later order: the first one is over
            pass
        deadline = time.monotonic() + 5
        while children(found.parent) != [one.process.pid]:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)


PARENT = f"""
import asyncio
from pathlib import Path
from freerun.machine.processes import ChildProcess

async def main():
    child = await ChildProcess.fork("one", "{PROGRAM}", ["waits"], {{"OMP_NUM_THREADS": "1"}}, Path("/dev/null"))
    print(await child.ready(), child.process.pid, sep="\\n", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_all_end_with_a_parent_killed_by_kill_9() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    found, pid = Found(parent.stdout.readline()), int(parent.stdout.readline())
    watched = [os.pidfd_open(found.parent), os.pidfd_open(pid)]
    parent.kill()
    parent.wait()
    parent.stdout.close()
    for one in watched:
        assert select.select([one], [], [], 5)[0]
        os.close(one)


async def test_engines_are_forked_and_so_are_those_that_are_started_again(tmp_path: Path) -> None:
    settings, key = engine_settings(tiny_folder(tmp_path / "model")), {"FREERUN_RUN_KEY": "the run's"}
    async with Processes("freerun.run.child", tmp_path) as processes:
        for again in (False, True):
            engine = await processes.begin("engine 0", "engine", settings, 1, key, vital=False)
            async with HttpEngine(await engine.ready(), "the run's") as reached:
                assert len([answer async for answer in reached.generate([3], Sampling(4), 2)]) == 2
            one = child_of(processes) if not again else processes._children[-1]
            assert isinstance(one, ChildProcess)
            found = {part.pid: part for part in parts_of(os.getpid())}
            assert found[one.process.pid].kind is PartKind.ENGINE, "`freerun chaos` strikes it"
            assert found[one.process.pid].name == "engine 0"
            assert found[one.process.pid].parent == next(iter(forking._preloaded.values())).pid
            os.kill(one.process.pid, signal.SIGKILL)
            await engine.wait()
            assert isinstance(engine.died(), ProcessDied)
