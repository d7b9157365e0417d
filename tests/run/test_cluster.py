"""Whole runs on machines of their own, which are network namespaces, by the commands that a user types; and what can be
wrong with machines, a line each."""

import asyncio
import json
import random
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from freerun.bench.cluster_run import MachineRun, freerun
from freerun.bench.namespaces import MachineNamespace, in_network, machines, unavailable
from freerun.bench.run_log import Audited
from freerun.config.load import load_config
from freerun.control.waiting import background, together
from freerun.core import ConfigError
from freerun.machine.nodes.cluster import Cluster
from freerun.machine.nodes.key import KEY
from freerun.machine.nodes.link import Link, join
from freerun.machine.nodes.messages import Answer, Ask, FromController, Offer
from freerun.machine.nodes.questions import Questions
from freerun.models.tiny import make_model
from freerun.observe.folder import RunFolder
from freerun.observe.records import read_steps
from freerun.run import training
from freerun.run.hosts import JoinedMachines
from freerun.run.prepare import prepare
from freerun.run.shared_folder import note_unshared

SECRET = "a key of thirty-two characters!!"
SOON_S = 60.0
needs_machines = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))


def settings(folder: Path) -> list[str]:
    """A file, and nothing to change in it: repeat the prompt's letter, for a model of 40k parameters."""
    make_model(folder / "model", "abcdef>", seed=1, hidden=32)
    letters = random.Random(0).choices("abcdef", k=2_000)
    rows = [{"prompt": f"{letter}>", "answer": letter} for letter in letters]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "run.yaml").write_text(
        f"model: {{path: {folder}/model}}\n"
        f"data: {{source: {folder}/train.jsonl, max_prompt_tokens: 8}}\n"
        "rollout: {group_size: 8, max_new_tokens: 1}\n"
        "control: {groups_per_step: 4, steps: 100000}\n"
        "engine: {cache_tokens: 4096, max_running: 64}\n"
    )
    return [str(folder / "run.yaml")]


@needs_machines
async def test_a_run_survives_the_cut_cable_of_its_engine(tmp_path: Path) -> None:
    with machines("controller", "one", "two") as places:
        async with MachineRun(places, settings(tmp_path), tmp_path, "run") as run, run.train() as process:
            await run.steps(3, process, SOON_S)
            (engine,) = run.who("engine")
            (trainer,) = run.who("trainer")
            assert {engine.name, trainer.name} == {"one", "two"}
            engine.cut()
            cut_s = time.monotonic()
            noticed_s = await run.noted(["machine", f"({engine.address}) is lost"], process, SOON_S) - cut_s
            assert noticed_s < 7, "five seconds, and some for a busy machine"
            engine.mend()
            await run.noted(["engine 0 joins, with version"], process, SOON_S)
            await run.steps(3, process, SOON_S)
            process.terminate()
            assert await asyncio.wait_for(process.wait(), SOON_S) == 128 + 15
        assert [machine.processes() for machine in places] == [[], [], []]
    found = Audited.of(run.run)
    steps = read_steps(RunFolder(run.run).metrics)
    assert found.trained >= 4 * len(steps) >= 4 * 6
    assert (found.lost, found.twice) == (0, 0)
    assert max(step.staleness_max for step in steps) <= 4


async def refused(folder: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> str:
    """What a run that cannot begin says, in one line."""
    monkeypatch.setenv(KEY, SECRET)
    config = load_config(Path(settings(folder)[0]), [f"runs={folder}/runs", "launcher=nodes", *overrides])
    with pytest.raises(ConfigError) as caught:
        await training.train(prepare(*config))
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


async def test_a_run_that_nobody_joins_says_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = await refused(tmp_path, monkeypatch, "cluster.listen=127.0.0.1:0", "cluster.wait_s=0.1")
    assert "resources.machines is 1, and after 0 s 0 have joined (none): run `freerun node --join" in said


async def test_a_port_that_is_taken_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        said = await refused(tmp_path, monkeypatch, f"cluster.listen={where}")
    assert f"cannot listen on {where} (Address already in use): set cluster.listen" in said


async def test_an_address_of_another_machine_cannot_be_listened_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = await refused(tmp_path, monkeypatch, "cluster.listen=192.0.2.1:7411")
    assert "cannot listen on 192.0.2.1:7411 (Cannot assign requested address): set cluster.listen" in said


def private_of(folder: Path) -> Path:
    return folder / "private"


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[list[MachineNamespace]]:
    """Two machines, of which the second has an address that only itself can reach, and a folder that nobody else sees.
    We are in the first one's network."""
    private_of(tmp_path).mkdir()
    with machines("controller", "far", private=[private_of(tmp_path)]) as (controller, far), in_network(controller.pid):
        subprocess.run(far.command("ip", "address", "add", "10.88.0.1/32", "dev", "lo"), check=True)
        yield [controller, far]


@needs_machines
async def test_a_machine_that_cannot_be_reached_is_told_so(apart: list[MachineNamespace], tmp_path: Path) -> None:
    notes: list[str] = []
    controller, far = apart
    async with Cluster(f"{controller.address}:0", SECRET.encode(), notes.append) as cluster:
        where = f"{controller.address}:{cluster.port}"
        refusals = [refused_node(far, where, address, tmp_path) for address in ("10.88.0.1", "192.0.2.1")]
        inside, others = await together(*refusals)
    assert re.search(r"machine far(-2)? says that it is at 10\.88\.0\.1, which the controller cannot reach: ", inside)
    assert re.search(r"machine far(-2)? says that it is at 192\.0\.2\.1, where it cannot listen: ", others)
    assert all("`freerun node --address`" in said for said in (inside, others))
    assert all(note.startswith(f"a machine at {far.address} was not admitted: machine far") for note in notes)


async def refused_node(machine: MachineNamespace, where: str, address: str, folder: Path) -> str:
    """What a node says last that claims to be at that address."""
    printed, options = folder / f"{address}.txt", ("node", "--join", where, "--address", address)
    async with freerun(machine, *options, log=printed, environment={KEY: SECRET}) as node:
        assert await asyncio.wait_for(node.wait(), SOON_S) == 2
    return printed.read_text().strip().splitlines()[-1]


@needs_machines
async def test_a_folder_that_machines_do_not_share_is_named(apart: list[MachineNamespace], tmp_path: Path) -> None:
    notes: list[str] = []
    controller, far = apart
    config = load_config(Path(settings(tmp_path)[0]), ["launcher=nodes", "cluster.wait_s=60"])
    async with Cluster(f"{controller.address}:0", SECRET.encode(), notes.append) as cluster:
        where, printed = f"{controller.address}:{cluster.port}", tmp_path / "node.txt"
        async with freerun(far, "node", "--join", where, log=printed, environment={KEY: SECRET}):
            hosts = JoinedMachines(cluster, config[0], tmp_path)
            plan = prepare(*config).plan(machines=await hosts.machines())
            for runs in (tmp_path / "shared", private_of(tmp_path)):
                await note_unshared(hosts, RunFolder.create(runs, "run"), plan, notes.append)
    (said,) = [note for note in notes if "shared" in note]
    assert said.startswith(f"{private_of(tmp_path)}/run is not shared with the trainer's machine far: ")
    assert "put `runs` into a folder that the controller's and the trainer's machines share" in said
    assert not list(tmp_path.rglob(".seen*"))


async def test_clocks_that_are_minutes_apart_are_noted() -> None:
    """The node is played here, since no process has a time of day of its own."""
    notes: list[str] = []
    async with Cluster("127.0.0.1:0", SECRET.encode(), notes.append) as cluster:
        connection = await asyncio.open_connection("127.0.0.1", cluster.port)
        link = await join(*connection, SECRET.encode(), metadata.version("freerun"))
        link.send(Offer("id", "late", "127.0.0.1", 1, 2**30, [], {}, time.time() - 600))
        questions = Questions("127.0.0.1")
        async with background(answer(link, questions)):
            await cluster.joined(1, SOON_S)
        questions.close()
        link.close()
    (said,) = [note for note in notes if "clock" in note]
    assert said.startswith("the clock of machine late is 600 s behind this one's: set both by NTP")


async def answer(link: Link, questions: Questions) -> None:
    while True:
        asked = await link.receive(FromController)
        if isinstance(asked, Ask):
            link.send(Answer(id=asked.id, value=await questions.answer(asked.what, asked.argument)))
