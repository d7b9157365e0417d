"""Judges on other machines: the same verdicts as on this one, whatever becomes of the machines. The nodes are real
processes on the loopback address."""

import asyncio
import os
import signal
import textwrap
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from freerun.core import ConfigError, FreerunError, RewardError, Task
from freerun.machine.nodes.cluster import Cluster
from freerun.machine.processes import Processes, pipe_reader
from freerun.rewards.base import JudgedSample, JudgeReason
from freerun.rewards.config import RewardConfig
from freerun.rewards.machines import spread
from freerun.rewards.machines.spread import JudgeMachine
from freerun.rewards.pools import PoolSettings
from freerun.rewards.service import JudgeService
from freerun.rewards.spec import JudgeSpec
from freerun.run.hosts import JoinedMachines
from freerun.run.judges import JudgesElsewhere, shared_out
from freerun.run.starter import Starter
from tests.machine.nodes.test_nodes import SECRET, node

TASK = Task("t", "", [], "5", extra={"big": 2**70, "half": "\ud800", "list": [1.5, None]})
JUDGE = """
    import os, time
    from pathlib import Path
    here = Path(__file__).parent

    def reward(task, text):
        if text.startswith("wait"):
            with open(here / "began", "wb") as pipe:
                pipe.write(b".")
            while not (here / "gate").exists():
                time.sleep(0.01)
        if text == "raise":
            raise ValueError("no good")
        assert task.extra["big"] == 2**70 and task.extra["list"] == [1.5, None]
        return len(text)

    def whole(task, sample):
        return 10 * sample.index + len(sample.group) + len(sample.messages)
"""


class Notes:
    def __init__(self) -> None:
        self.all: list[str] = []
        self._news = asyncio.Event()

    def append(self, note: str) -> None:
        self.all.append(note)
        self._news.set()

    async def said(self, part: str) -> str:
        """The first note with it; all up to it are forgotten."""
        async with asyncio.timeout(30):
            while True:
                while self.all:
                    if part in (note := self.all.pop(0)):
                        return note
                self._news.clear()
                await self._news.wait()


@dataclass
class There:
    cluster: Cluster
    starter: Starter
    notes: Notes

    def elsewhere(self, *names: str) -> JudgesElsewhere:
        return JudgesElsewhere(self.starter, dict.fromkeys(names, 1), self.notes.append)

    def service(self, judge: Any, *names: str) -> JudgeService:
        config = RewardConfig(judge=judge, workers=len(names), timeout_s=60)
        return JudgeService(config, open_pools=self.elsewhere(*names).open)


@asynccontextmanager
async def machines(tmp_path: Path, *names: str) -> AsyncIterator[tuple[There, list[Process]]]:
    notes = Notes()
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(Cluster("127.0.0.1:0", SECRET.encode(), notes.append))
        nodes = [await stack.enter_async_context(node(cluster.port, "--name", name)) for name in names]
        await cluster.joined(len(names), 30)
        processes = await stack.enter_async_context(Processes("freerun.run.child", tmp_path))
        hosts = JoinedMachines(cluster, cast(Any, None), tmp_path)
        yield There(cluster, Starter(cast(Any, None), cast(Any, None), processes, {}, hosts), notes), nodes


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(textwrap.dedent(JUDGE))
    return f"{tmp_path}/mine.py"


async def test_machines_judge_as_this_one_does_and_lost_ones_lose_nothing(own: str, tmp_path: Path) -> None:
    async with machines(tmp_path, "a", "b") as (there, (first, second)), AsyncExitStack() as stack:
        parts = [f"{own}:reward", {"name": f"{own}:whole", "workers": 2}]
        service = await stack.enter_async_context(there.service(parts, "a", "b"))
        samples = [JudgedSample("x" * n, [{"role": "user", "content": "?"}]) for n in range(3)]
        verdicts = await service.judge_all(TASK, samples)
        assert [verdict.reward for verdict in verdicts] == [0 + 0 + 4, 1 + 10 + 4, 2 + 20 + 4]
        failed = await service.judge(TASK, "raise")
        assert failed.reward is None
        assert failed.reason is JudgeReason.ERROR
        assert "ValueError: no good" in failed.detail
        assert sum(span.args["judgements"] for span in service.spans(every=True)) == 2 * (3 + 1)

        os.mkfifo(tmp_path / "began")
        began, _ = await pipe_reader(os.open(tmp_path / "began", os.O_RDWR | os.O_NONBLOCK))
        waiting = asyncio.gather(*(service.judge(TASK, f"wait {n}") for n in range(6)))
        await began.readexactly(2)  # a worker on each machine
        assert service.waiting > 0
        first.send_signal(signal.SIGKILL)
        assert "judged elsewhere" in await there.notes.said("judges on machine a are lost")
        (tmp_path / "gate").touch()
        assert [verdict.reward for verdict in await waiting] == [6 + 1] * 6

        async with node(there.cluster.port, "--name", "c"):  # takes a's place
            await there.notes.said("judges on machine a are back")
            second.send_signal(signal.SIGKILL)
            await there.notes.said("judges on machine b are lost")
            assert (await service.judge(TASK, "four")).reward == 4 + 1
        await there.notes.said("machine a (127.0.0.1) is lost")
        waits = asyncio.create_task(service.judge(TASK, "later"))
        async with node(there.cluster.port):
            assert (await asyncio.wait_for(waits, 30)).reward == 5 + 1, "nobody was there, and then somebody"
        assert service.counts[JudgeReason.OK] == 3 + 6 + 2


async def test_a_judge_process_that_hangs_is_started_again_and_one_that_cannot_live_ends_judging(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spread, "LOST_S", 1.5)
    async with machines(tmp_path, "a") as (there, _), there.service(f"{own}:reward", "a") as service:
        assert (await service.judge(TASK, "four")).reward == 4
        started = there.starter.processes._children
        os.kill(await judge_process(started[-1]), signal.SIGSTOP)
        assert (await asyncio.wait_for(service.judge(TASK, "again"), 30)).reward == 5
        assert "nothing was heard" in await there.notes.said("are lost")
        for then in ("are back", "not started again"):
            os.kill(await judge_process(started[-1]), signal.SIGKILL)
            await there.notes.said("are lost")
            await there.notes.said(then)
        with pytest.raises(FreerunError, match=r"judge0 .*was killed by SIGKILL"):
            await service.judge(TASK, "never")


async def judge_process(child: Any) -> int:
    """The process that listens where the judges said that they can be reached."""
    port = int((await child.ready()).rpartition(":")[2])
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_, inode = line.split()[:10]
        if int(local.partition(":")[2], 16) == port and state == "0A":
            for fd in Path("/proc").glob("[0-9]*/fd/*"):
                try:
                    if os.readlink(fd) == f"socket:[{inode}]":
                        return int(fd.parts[2])
                except OSError:
                    continue
    raise AssertionError(f"nobody listens on {port}")


async def test_what_cannot_judge_there_is_one_line(own: str, tmp_path: Path) -> None:
    async with machines(tmp_path, "a") as (there, _):
        elsewhere = there.elsewhere("a")
        gone = PoolSettings([JudgeSpec(f"{tmp_path}/gone.py:reward")], 1, 1.0, 0)
        with pytest.raises(ConfigError, match=r"^on machine a: there is no file .*gone\.py, .* reward\.where=control"):
            async with elsewhere.open([gone], None):
                pass
        (tmp_path / "bad.py").write_text("raise ValueError('broken')\ndef reward(task, text): return 0")
        bad = PoolSettings([JudgeSpec(f"{tmp_path}/bad.py:reward")], 1, 1.0, 0)
        with pytest.raises(RewardError, match=r"^on machine a: the judge .*broken"):
            async with elsewhere.open([bad], None):
                pass
        _, where = await there.starter.judge("judge", "a", {0: PoolSettings([JudgeSpec("exact")], 1, 1.0, 0)})
        with pytest.raises(FreerunError, match="another key"):
            await JudgeMachine.connect(where, "not the run's key", {0: 1})


def test_workers_are_shared_out() -> None:
    def workers(*counts: int) -> list[list[int]]:
        settings = [PoolSettings([], count, 1.0, 0) for count in counts]
        return [[pool.workers for pool in pools.values()] for pools in shared_out(settings, {"a": 3, "b": 1}).values()]

    assert workers(4) == [[3], [1]], "as planned"
    assert workers(4, 8) == [[3, 4], [1, 4]]
    assert workers(4, 1) == [[3, 1], [1]], "a judge that has one worker in all"
