"""A run whose rewards are a reward model's, with every real process: that it learns what the model likes."""

import os
import subprocess
from pathlib import Path

import pytest

from freerun.core import ConfigError
from freerun.machine.gpus import Gpu
from freerun.machine.machines import Machine
from freerun.observe.records import read_steps
from freerun.plan.plan import make_plan
from freerun.run import training
from tests.rewards.classifiers import taught_classifier
from tests.run.test_resume import FREERUN
from tests.run.test_train import prepared

GIB = 2**30


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return taught_classifier(tmp_path_factory.mktemp("classifiers") / "taught")


async def test_a_run_learns_what_the_reward_model_likes(tmp_path: Path, taught: Path) -> None:
    judge = f"reward.judge={{name: reward_model, path: {taught}}}"
    run = prepared(tmp_path, judge, "control.steps=70", "evaluate.every=70", "evaluate.pass_reward=0.5")
    outcome = await training.train(run)
    steps = read_steps(outcome.folder.metrics)
    assert steps[0].reward_mean < 0.4
    assert max(record.reward_mean for record in steps[-5:]) > 0.75
    assert outcome.evaluations[-1].pass_at_1 > 0.6
    assert (outcome.folder.logs / "reward-model.log").is_file()


def test_a_dry_run_asks_it_and_finds_what_is_none(tmp_path: Path, taught: Path) -> None:
    run = prepared(tmp_path, f"reward.judge={{name: reward_model, path: {taught}}}")
    (tmp_path / "run.yaml").write_text(run.config.model_dump_json())
    os.rename(taught, taught.with_name("moved"))
    try:
        command = [*FREERUN, "train", str(tmp_path / "run.yaml"), "--dry-run"]
        failed = subprocess.run(command, capture_output=True, text=True, check=False)
        assert failed.returncode == 2
        assert f"{taught} is no model's folder" in failed.stderr
    finally:
        os.rename(taught.with_name("moved"), taught)
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "judge      reward_model gives" in said
    assert "reward-model: a process of its own, float32 on cpu" in said


def test_on_gpus_it_has_a_place_and_a_share_of_the_memory(tmp_path: Path, taught: Path) -> None:
    run = prepared(tmp_path, f"reward.judge={{name: reward_model, path: {taught}}}")

    def machine(gpus: int, free: int) -> list[Machine]:
        return [Machine("local", "127.0.0.1", 8, 64 * GIB, [Gpu(f"G{i}", "GPU", 80 * GIB, free) for i in range(gpus)])]

    for gpus in (1, 2):
        plan = make_plan(run.config, run.shape, run.lengths, machines=machine(gpus, 80 * GIB))
        (reader,) = plan.readers
        assert reader.process == "reward-model"
        assert 0 < (reader.memory_share or 0) < 0.2
        assert reader in plan.everyone
        assert plan.placement.shared
        total = dict.fromkeys(range(gpus), 0.0)
        for one in plan.everyone:
            total[one.sees[0]] += one.memory_share or 0
        assert all(share < 1 for share in total.values())
        assert "reward-model" in str(plan.memory)
    with pytest.raises(ConfigError, match=r"reward-model \d"):
        make_plan(run.config, run.shape, run.lengths, machines=machine(1, 4 * GIB))
