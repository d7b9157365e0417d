"""`freerun doctor --cluster` on network namespaces: what works is told, and so is what does not, with the fix."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from freerun.bench.namespaces import machines, unavailable
from freerun.machine.nodes.key import KEY

FREERUN = (sys.executable, "-m", "freerun.cli.main")
RUN = """
launcher: nodes
resources: {{machines: 2, gpus: 8}}
cluster: {{wait_s: 60}}
model: {{path: {0}/model}}
data: {{source: data.jsonl}}
runs: {0}/runs
reward: {{judge: "{0}/own/judge.py:reward", where: machines}}
weights: {{way: files, folder: {0}/weights}}
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for folder in ("model", "runs", "weights", "own"):
        (tmp_path / folder).mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "own" / "judge.py").write_text("def reward(task, text): return 0")
    (tmp_path / "run.yaml").write_text(RUN.format(tmp_path))
    return tmp_path / "run.yaml"


@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
def test_every_link_and_folder_is_tried(run: Path) -> None:
    environment, folder = {**os.environ, KEY: "a key of thirty-two characters!!"}, run.parent
    private = [folder / "weights", folder / "own"]
    with machines("controller", "one", "two", private=private) as (controller, one, two):
        subprocess.run(one.command("ip", "route", "add", "prohibit", two.address), check=True)
        join = ("node", "--join", f"{controller.address}:7411")
        nodes = [subprocess.Popen(node.command(*FREERUN, *join), env=environment) for node in (one, two)]
        doctor = subprocess.run(
            controller.command(*FREERUN, "doctor", "--cluster", str(run)),
            env=environment | {"COLUMNS": "300"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert doctor.returncode == 0, doctor.stderr
        assert [node.wait(20) for node in nodes] == [0, 0], "they leave when it is done"
    yes = [line[4:] for line in doctor.stdout.splitlines() if line.startswith("yes ")]
    no = [line[4:] for line in doctor.stdout.splitlines() if line.startswith("no  ")]
    for works in (
        "machine one at 10.77.0.3",
        "freerun 0.1.0 on every machine",
        "the clock of one agrees",
        "the controller takes ",
        f"the model {folder}/model is on two",
        f"{folder}/runs (runs) is shared with one",
    ):
        assert any(line.startswith(works) for line in yes), (works, doctor.stdout)
    cut = sorted(line.partition(": open all ports between the machines")[0] for line in no if "cannot reach" in line)
    assert cut == ["one cannot reach two (Permission denied)", "two cannot reach one (no answer)"], doctor.stdout
    assert "resources.gpus is 8, and all machines have 0; lower it, or add machines" in "\n".join(no)
    for missing in (f"the judge {folder}/own/judge.py is not on two", f"{folder}/weights (weights.folder) is not the"):
        assert any(line.startswith(missing) for line in no), (missing, doctor.stdout)
    assert list((folder / "runs").iterdir()) == []


def test_a_run_on_one_machine_has_no_cluster(run: Path) -> None:
    command = [
        *FREERUN,
        "doctor",
        "--cluster",
        str(run),
        "launcher=local",
        "resources.machines=1",
        "reward.where=controller",
    ]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert refused.stderr.startswith("freerun: launcher is local, so that there is no cluster to try: set launcher=")
