"""Nodes by Ray: started on its machines, ended with the run. Ray is real, with token authentication, two of its
machines on this one."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from subprocess import DEVNULL, PIPE
from typing import Any

import pytest

from freerun.config.tree import RunConfig
from freerun.core import ConfigError
from freerun.machine.processes import Child
from freerun.run import ray as launcher
from freerun.run.hosts import hosts_of
from tests.machine.nodes.test_nodes import ECHO, gone


def test_without_ray_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"launcher: ray needs Ray, .*: pip install 'freerun\[ray\]'"):
        launcher._connected()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], None]]:
    """Sets which cluster there is: the real one, or what is told."""
    if find_spec("ray") is None:
        pytest.skip("launcher: ray needs ray: pip install 'freerun[ray]'")
    token = tmp_path_factory.mktemp("ray") / "token"
    token.write_text(token_hex())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
        with subprocess.Popen(
            [sys.executable, "-m", "tests.run.ray_machines"], stdin=PIPE, stdout=PIPE, stderr=DEVNULL, text=True
        ) as machines:
            assert machines.stdout
            said = next((line for line in machines.stdout if line.startswith("ray is at ")), "")
            assert said, "Ray did not start"
            yield lambda at: patch.setenv("RAY_ADDRESS", at or said.split()[-1])


def run_on(machines: int, wait_s: float = 60.0, **resources: int) -> RunConfig:
    return RunConfig.model_validate(
        {
            "model": {"path": "model"},
            "data": {"source": "data.jsonl"},
            "launcher": "ray",
            "cluster": {"listen": "127.0.0.1:0", "wait_s": wait_s},
            "resources": {"machines": machines, **resources},
        }
    )


async def test_nodes_come_back_and_leave_with_the_run(cluster: Callable[[str], None], tmp_path: Path) -> None:
    cluster("")
    notes: list[str] = []
    async with hosts_of(run_on(2), notes.append) as hosts:
        first, second = await hosts.machines()
        pids, child_of = [], dict[str, Child]()
        for name in (first.name, second.name):
            child = await (await hosts.host(name)).start("worker", ECHO, ["stays"], {}, tmp_path / "log")
            pids.append(int((await child.ready()).split()[0]))
            child_of[name] = child
        node, keeper = parent(pids[0]), parent(parent(pids[0]))
        assert hosts.key not in Path(f"/proc/{keeper}/environ").read_text(errors="replace")
        os.kill(keeper, signal.SIGKILL)  # the actor: its node ends with it, and Ray starts both again
        await gone(node)
        await gone(pids[0])
        await asyncio.wait_for(child_of[first.name].wait(), 10)
        back = await asyncio.wait_for(hosts.host(first.name), 60)
        child = await back.start("worker", ECHO, ["stays"], {}, tmp_path / "log")
        pids[0] = int((await child.ready()).split()[0])
        nodes = [parent(pid) for pid in pids]
        assert any("is back" in note for note in notes)
    for pid in [*pids, *nodes]:
        await gone(pid)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize(
    ("at", "asked", "said"),
    [
        ("", {"machines": 3, "gpus": 6}, r"asks for 3 machine\(s\) with 1 CPU and 2 GPU each; the cluster has 2: .*; "),
        ("127.0.0.1:1", {"machines": 1}, r"launcher: ray finds no Ray cluster at 127\.0\.0\.1:1 .*: run `ray start`"),
        ("ray://127.0.0.1:10001", {"machines": 1}, r"RAY_ADDRESS is ray://.*: run the controller on a machine of the"),
    ],
)
async def test_bad_input_is_one_line(cluster: Callable[[str], None], at: str, asked: dict[str, Any], said: str) -> None:
    cluster(at)
    with pytest.raises(ConfigError, match=said) as refused:
        async with hosts_of(run_on(wait_s=1.0, **asked), lambda _: None):
            pass
    assert "\n" not in refused.value.message
