"""Training on preference pairs with every real process: that it learns them, and goes on after a kill -9."""

import asyncio
import json
import random
import subprocess
from math import log
from pathlib import Path

import pytest
import torch

from freerun.config.load import load_config
from freerun.core import ConfigError, DataError
from freerun.models.checkpoint import load_decoder
from freerun.models.tiny import make_model
from freerun.observe.folder import RunFolder
from freerun.observe.records import read_evals, read_steps
from freerun.run.preferences import dpo
from freerun.run.prepare import Prepared, prepare_dpo
from freerun.run.resume import resume
from tests.run.test_resume import FREERUN, kill_in_mid_run, steps_of, weights


def prepared(folder: Path, *overrides: str) -> Prepared:
    """The prompt's letter is better than any other one."""
    if not (folder / "model").exists():
        make_model(folder / "model", "abcdef>", seed=1, hidden=32)
        dice = random.Random(0)
        rows = []
        for _ in range(200):
            right, wrong = dice.sample("abcdef", k=2)
            rows.append({"prompt": f"{right}>", "chosen": right, "rejected": wrong})
        for name, part in (("train", rows[:160]), ("held_out", rows[160:])):
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    base = [
        "name=test", f"runs={folder / 'runs'}", f"model.path={folder / 'model'}", "data.max_prompt_tokens=8",
        f"data.source={folder / 'train.jsonl'}", f"held_out.source={folder / 'held_out.jsonl'}",
        "control.groups_per_step=16", "train.lr=5e-3", "train.weight_decay=0", "dpo.beta=0.5",
    ]  # fmt: skip
    return prepare_dpo(*load_config(None, [*base, *overrides]))


async def test_pairs_are_learned_and_held_out_ones_are_right(tmp_path: Path) -> None:
    folder = await dpo(prepared(tmp_path, "control.steps=40", "evaluate.every=20"))
    steps = read_steps(folder.metrics)
    assert steps[0].trainer["loss"] == pytest.approx(log(2), abs=1e-4)
    assert steps[0].trainer["pair_margin"] == pytest.approx(0, abs=1e-3)
    assert steps[-1].trainer["loss"] < 0.3
    assert steps[-1].trainer["pair_accuracy"] > 0.9
    assert steps[0].samples == 32, "two answers a pair"
    evaluations = read_evals(folder.evals)
    assert [evaluation.version for evaluation in evaluations] == [20, 40]
    assert evaluations[-1].pass_at_1 > 0.9
    load_decoder(folder.checkpoints / "last")
    assert "40 steps" in folder.report.read_text()


def test_killed_it_goes_on_to_the_same_weights_bit_for_bit(tmp_path: Path) -> None:
    settings = ("control.groups_per_step=7", "train.warmup_steps=4", "train.save_every=3")
    saved, done = kill_in_mid_run(prepared(tmp_path, *settings, "name=killed", "control.steps=100000"), tmp_path, "dpo")
    assert done >= saved
    folder = RunFolder(tmp_path / "runs" / "killed")
    resume_it = [*FREERUN, "resume", str(folder.path), f"control.steps={saved + 2}"]
    said = subprocess.run(resume_it, capture_output=True, text=True, check=True).stdout
    assert "done: the model is in" in said
    assert steps_of(folder) == list(range(1, saved + 3))
    whole = asyncio.run(dpo(prepared(tmp_path, *settings, "name=unbroken", f"control.steps={saved + 2}")))
    resumed, unbroken = weights(folder), weights(whole)
    assert all(torch.equal(resumed[key], unbroken[key]) for key in unbroken)

    with pytest.raises(ConfigError, match=rf"is complete: {saved + 2} steps are done"):
        resume(folder.path, [])
    more = f"control.steps={saved + 4}"
    again = folder.reference.rename(tmp_path / "aside")
    with pytest.raises(ConfigError, match=r"reference\.npz is gone"):
        asyncio.run(_go_on(folder, more))
    again.rename(folder.reference)
    rows = (tmp_path / "train.jsonl").read_text().splitlines()
    (tmp_path / "train.jsonl").write_text("\n".join([*rows[:-1], json.dumps(json.loads(rows[-1]) | {"rejected": ""})]))
    with pytest.raises(ConfigError, match=r"reference\.npz is of other pairs"):
        asyncio.run(_go_on(folder, more))


async def _go_on(folder: RunFolder, *overrides: str) -> None:
    run, start = resume(folder.path, overrides)
    await dpo(run, start=start)


def test_a_dry_run_prints_what_would_be_learned(tmp_path: Path) -> None:
    run = prepared(tmp_path)
    (tmp_path / "run.yaml").write_text(run.config.model_dump_json())
    command = [*FREERUN, "dpo", str(tmp_path / "run.yaml"), "--dry-run"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "160 pairs to learn from" in said
    assert "DPO, β 0.5; the model as it is now is the reference" in said
    assert "40 pairs of held_out every 50 steps" in said
    assert not (tmp_path / "runs").exists()
    (tmp_path / "train.jsonl").write_text(json.dumps({"prompt": "a>", "chosen": "a"}) + "\n")
    failed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert failed.returncode == 2
    assert 'train:0 has no "rejected"' in failed.stderr
    with pytest.raises(DataError, match='has no "rejected"'):
        prepared(tmp_path)
