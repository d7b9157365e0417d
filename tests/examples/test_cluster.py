"""The ways to start nodes in examples/cluster, as far as they can be tried without a cluster: on network namespaces, by
a real ssh server, with stand-ins for Slurm's two programs, and against Kubernetes' own schema."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which

import pytest
import yaml

from freerun.bench.namespaces import MachineNamespace, machines, unavailable

CLUSTER = Path(__file__).parents[2] / "examples" / "cluster"
NAMESPACES = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
RUN = """
model: {{path: {0}}}
data: {{source: data.jsonl}}
runs: {0}/runs
"""
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for machine in $MACHINES; do
    nsenter --target=$machine --net --mount --uts env --chdir="$PWD" "$@" &
done
wait
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a run's file, and with `freerun` for the PATH."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "run.yaml").write_text(RUN.format(tmp_path))
    program(tmp_path / "bin" / "freerun", f'#!/bin/bash\nexec {sys.executable} -m freerun.cli.main "$@"\n')
    return tmp_path


def program(file: Path, text: str) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", "COLUMNS": "300"}


def findings(said: str, names: list[str]) -> None:
    for name in names:
        assert f"yes machine {name} at 10.77.0." in said, said
        assert f"yes {name} takes " in said, said


@NAMESPACES
def test_a_slurm_job(folder: Path) -> None:
    program(folder / "bin" / "srun", SRUN)
    with machines("one", "two") as (one, two):
        program(folder / "bin" / "scontrol", f"#!/bin/bash\nprintf '%s\\n' {one.address} {two.address}\n")
        job = {
            "SLURM_JOB_ID": "123456",
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_JOB_NODELIST": "machine[1-2]",
            "MACHINES": f"{one.pid} {two.pid}",
        }
        command = one.command("bash", str(CLUSTER / "freerun.sbatch"), "doctor", "--cluster", "run.yaml", folder=folder)
        ran = subprocess.run(
            command, env=environment(folder) | job, capture_output=True, text=True, check=False, timeout=60
        )
        assert ran.returncode == 0, ran.stderr
        findings(ran.stdout, ["one", "two"])
        assert one.processes() == two.processes() == []


@contextmanager
def ssh_server(machine: MachineNamespace, folder: Path) -> Iterator[str]:
    """How to call ssh, for a server on that machine that lets this user in."""
    for name in ("host", "own"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    home = folder / "home"
    home.mkdir()
    options = {
        "HostKey": folder / "host",
        "AuthorizedKeysFile": folder / "own.pub",
        "StrictModes": "no",
        "UsePAM": "no",
        "PidFile": "none",
        "PermitRootLogin": "yes",
        "SetEnv": f"HOME={home} PYTHONPATH={os.environ.get('PYTHONPATH', '')}",
    }
    Path("/run/sshd").mkdir(exist_ok=True)
    config = folder / "sshd_config"
    config.write_text("".join(f"{name} {value}\n" for name, value in options.items()))
    with subprocess.Popen(machine.command(str(which("sshd")), "-D", "-e", "-f", str(config))) as server:
        try:
            trusts = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
            yield f"ssh -q {trusts} -o ConnectionAttempts=20 -i {folder}/own"
        finally:
            server.terminate()


@NAMESPACES
@pytest.mark.skipif(which("sshd") is None, reason="needs sshd: apt install openssh-server")
def test_machines_by_ssh(folder: Path) -> None:
    key = folder / "key"
    key.write_text("a key of thirty-two characters!!")
    with machines("controller", "one") as (controller, one), ssh_server(one, folder) as ssh:
        tools = environment(folder) | {"SSH": ssh, "FREERUN": f"{folder}/bin/freerun"}
        join = (str(key), f"{controller.address}:7411", one.address)
        nodes = subprocess.Popen(controller.command(str(CLUSTER / "nodes.sh"), *join), env=tools)
        try:
            settings = ["launcher=nodes", "resources.machines=1", f"cluster.key_file={key}"]
            ran = subprocess.run(
                controller.command("freerun", "doctor", "--cluster", "run.yaml", *settings, folder=folder),
                env=tools,
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            assert "yes machine one at 10.77.0.3" in ran.stdout, ran.stdout + ran.stderr
            assert nodes.wait(20) == 0, "the nodes leave when the run is over"
        finally:
            nodes.kill()
            nodes.wait()


def test_the_manifest_is_what_kubernetes_takes() -> None:
    kubernetes = pytest.importorskip(
        "kubernetes_validate", reason="needs kubernetes-validate: pip install kubernetes-validate"
    )
    documents = list(yaml.safe_load_all((CLUSTER / "kubernetes.yaml").read_text()))
    for document in documents:
        kubernetes.validate(document, kubernetes.latest_version(), strict=True)
    named = {document["metadata"]["name"]: document for document in documents}
    nodes, controller = named["freerun-nodes"]["spec"], named["freerun-controller"]["spec"]
    count = nodes["parallelism"]
    assert nodes["completions"] == count
    assert f"resources.machines={count}" in controller["template"]["spec"]["containers"][0]["command"]
