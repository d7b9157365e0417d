"""Each command of the documentation works as typed, in a folder that has what the pages talk about.

Every `freerun …` is run whole unless it is named below, with the reason. A command of another program is named, too:
one that is in no list fails. What is changed about a command, to make it small or to keep it from a port that is taken,
is added behind it.
"""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, chdir
from pathlib import Path

import pytest
import typer

from freerun.cli.main import app
from tests.docs.pages import ROOT, commands, commands_elsewhere, pages
from tests.docs.running import parse, run, started
from tests.docs.workplace import make_workplace

FIRST = ("freerun train run.yaml", "freerun sft run.yaml name=warm-up control.steps=100")
"""What others go on from; the workplace is made with them."""

SMALLER = {
    "freerun bench engine --model 4m": "--requests 2 --tokens 4 --slots 2",
    "freerun bench engine --model 4m --weights fp8": "--requests 2 --tokens 4 --slots 2",
    "freerun bench speculation --model models/my-model --data train.jsonl": "--tasks 2 --rows 4 --group 2 --tokens 40",
    "freerun bench trainer --model 4m": "--tokens 64 --seq 32 --steps 1",
    "freerun bench replay": "--groups 1 --group 2 --tokens 4 --prompt 4 --staleness 0",
    "freerun bench packing": "--tokens 64 --longest 32 --steps 1",
    "freerun bench gateway": "--tokens 100 --requests 10",
    "freerun bench judge": "--answers 20 --many 10",
    "freerun bench sessions": "--sessions 20 --at-once 2 --agent-s 0.01 --trivial 20",
}
"""Run with these arguments behind it, since it would take minutes."""

_SAME = "it starts the same processes as `freerun train run.yaml`, which is run whole"
CHECKED = {
    "freerun train run.yaml train.lr=1e-5 name=slower": _SAME,
    "freerun train run.yaml model.path=runs/warm-up/checkpoints/last": _SAME,
    "freerun train run.yaml train.objective=praise.py:OBJECTIVE": "tests/train/test_own_objective.py runs it whole",
}
"""Run with --dry-run behind it: model, data, reward and plan are checked, and nothing is started."""

_BENCH = "it takes minutes at its smallest; tests/bench runs it"
PARSED = {
    "freerun bench async": _BENCH,
    "freerun bench async --model 32b --lora 32 --etas 2 --steps 3 train.recompute=all": "it needs a GPU",
    "freerun bench async --model 8b --lora 32 --cap 24 --longest 2048 --etas 2 train.lora.bits=8 train.recompute=all": (
        "it needs a GPU"
    ),
    "freerun bench interrupt": _BENCH,
    "freerun bench update": _BENCH,
    "freerun bench mps": _BENCH,
    "freerun bench staleness": _BENCH,
    "freerun bench controller": _BENCH,
    "freerun bench weights": _BENCH,
    "freerun bench exact": _BENCH,
    "freerun bench watch": "it needs a browser; tests/bench/test_watch.py runs it where there is one",
    "freerun bench cluster": "it needs root; tests/bench/test_cluster.py runs it where it can",
    "freerun train run.yaml launcher=ray resources.machines=4 resources.gpus=32": "it needs a Ray cluster of 32 GPUs",
    "freerun demo --preset areal-1.5b-math-small": "it takes a minute; tests/commands/test_small.py runs it",
    "freerun train areal-1.5b-math-small": "the same",
    "freerun train examples/chain_sum/run.yaml": "it needs SmolLM2 and a GPU; tests/examples/test_recipes.py checks it",
}
"""Its arguments are read as the command reads them, its configuration is loaded, and that is all."""

STARTED = {
    "freerun watch": "--port 0",
    "freerun watch --host 0.0.0.0 --port 7420": "--port 0 --host 127.0.0.1",
    "freerun serve models/my-model": "--port 0",
    "freerun serve models/my-model --host 0.0.0.0 --port 9000 --api-key SECRET engine.cache_tokens=200000": "--port 0",
    "freerun serve runs/math/checkpoints/last": "--port 0",
    "freerun serve models/my-model --score --host 0.0.0.0 --port 8001 --api-key SECRET": "--port 0",
}
"""It runs until Ctrl-C: it is started on a free port, asked, and stopped."""

CLUSTER = (
    "openssl rand -hex 32 > key && chmod 600 key",
    "freerun node --join one:7411 --key-file key",
    "freerun doctor --cluster run.yaml launcher=nodes resources.machines=2 cluster.key_file=key",
    "freerun train run.yaml launcher=nodes resources.machines=2 cluster.key_file=key",
)
"""One story, told by a test of its own, with two nodes on this machine."""

OTHER_PROGRAMS = {
    "make demo": "make",
    "make demo-agents": "make",
    "make test": "make",
    "pip install -e .": "tests/test_wheel.py installs it",
    "pip install 'freerun[ray]'": "it needs PyPI",
    "python examples/smollm2.py models/smollm2": "it downloads 93 MB; tests/examples/test_smollm2.py runs it",
    "scp -p key two:key": "it needs a second machine",
    "ssh -L 7420:localhost:7420 my-server": "it needs a second machine",
    "examples/cluster/nodes.sh key one:7411 two three four": "tests/examples/test_cluster.py runs it",
    "sbatch --nodes=4 --gpus-per-node=8 examples/cluster/freerun.sbatch train run.yaml": "it needs Slurm",
    "sbatch --nodes=4 --gpus-per-node=8 examples/cluster/freerun.sbatch doctor --cluster run.yaml": "it needs Slurm",
    "kubectl create secret generic freerun-key --from-literal=key=$(openssl rand -hex 32)": "it needs Kubernetes",
    "kubectl apply -f examples/cluster/kubernetes.yaml": "it needs Kubernetes",
    "kubectl logs -f job/freerun-controller": "it needs Kubernetes",
}
"""Programs that are not Freerun, and why they are not run here; files that they name must exist."""

OTHER_SERVERS = ("vllm.entrypoints.openai.api_server", "sglang.launch_server")
"""Servers of other makers: `make test-engines` starts them so, where they are installed."""

NAMED = {*FIRST, *SMALLER, *CHECKED, *PARSED, *STARTED, *CLUSTER, *OTHER_PROGRAMS}
WHOLE = [command for command in commands() if command.startswith("freerun ") and command not in NAMED]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("docs")
    make_workplace(folder)
    with chdir(folder):
        for command in FIRST:
            run(command)
        yield folder


def as_after_a_kill(folder: Path) -> None:
    """The newest checkpoint of runs/math was not yet written."""
    shutil.rmtree(folder / "runs" / "math" / "checkpoints" / "step-2")


BEFORE: dict[str, Callable[[Path], None]] = {"freerun resume runs/math": as_after_a_kill}
"""What must have happened before a command makes sense."""


def test_every_command_is_in_a_list_and_every_list_has_commands_only() -> None:
    found = set(commands())
    unknown = {
        c for c in found if c not in NAMED and c not in WHOLE and not any(server in c for server in OTHER_SERVERS)
    }
    assert not unknown, "name them in tests/docs/test_commands.py, with how they are tried"
    assert not NAMED - found, "no page has these any more"
    assert not commands_elsewhere(), "a block with commands is a block of bash"


@pytest.mark.parametrize("command", WHOLE)
def test_it_works_as_typed(command: str, workplace: Path) -> None:
    if command in BEFORE:
        BEFORE[command](workplace)
    assert run(command)


@pytest.mark.parametrize("command", SMALLER)
def test_it_works_at_a_smaller_size(command: str, workplace: Path) -> None:
    assert run(f"{command} {SMALLER[command]}")


@pytest.mark.parametrize("command", CHECKED)
def test_it_passes_a_dry_run(command: str, workplace: Path) -> None:
    assert run(f"{command} --dry-run")


@pytest.mark.parametrize("command", PARSED)
def test_its_arguments_are_right(command: str, workplace: Path) -> None:
    parse(command)


def test_servers_come_up_and_answer(workplace: Path) -> None:
    with ExitStack() as running:
        servers = [running.enter_context(started(f"{command} {more}")) for command, more in STARTED.items()]
        for printed in servers:
            port = printed(r"http://[\w.]+:(\d+)")[1]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as reply:
                assert reply.status == 200


def test_two_machines_by_hand(workplace: Path) -> None:
    """The key, the nodes, the doctor and the run of docs/cluster.md, with both machines on this one."""
    key, node, doctor, train = CLUSTER
    subprocess.run(key, shell=True, check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with ExitStack() as running:
        for name in ("two", "three"):
            joins = f"{node.replace('one:7411', address)} --stay --name {name}"
            running.enter_context(started(joins))
        assert "yes" in run(f"{doctor} cluster.listen={address}")
        assert "done: 2 steps" in run(f"{train} cluster.listen={address} name=cluster")


@pytest.mark.parametrize("command", OTHER_PROGRAMS)
def test_what_other_programs_are_given_exists(command: str) -> None:
    words = shlex.split(command)
    if words[0] == "make":
        subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, check=True, capture_output=True)
    for word in words:
        assert not word.startswith("examples/") or (ROOT / word).is_file(), word
    if words[0] == "python":
        subprocess.run(
            [sys.executable, ROOT / words[1], "--help"], check=True, capture_output=True, env=dict(os.environ)
        )


def test_commands_within_the_text_exist() -> None:
    known = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    for page in pages():
        for named in re.findall(r"`freerun ([a-z]+)", page.read_text()):
            assert named in known, f"{page}: freerun {named}"
