"""Supervised training with every real process: until it is good enough, and on after a kill -9."""

import asyncio
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from freerun.core import ConfigError, FreerunError
from freerun.core.observer import Observer
from freerun.core.records import StepRecord
from freerun.core.reports import Evaluation
from freerun.models.checkpoint import load_decoder
from freerun.observe.folder import RunFolder
from freerun.observe.records import read_evals, read_steps
from freerun.run.prepare import example_of, prepare_sft
from freerun.run.resume import resume
from freerun.run.supervised import sft
from tests.run.test_resume import kill_in_mid_run, steps_of, weights
from tests.run.test_train import prepared
from tests.typed import freerun


class Seen(Observer):
    def __init__(self) -> None:
        self.steps: list[StepRecord] = []
        self.evaluations: list[tuple[int, Evaluation]] = []

    def step(self, record: StepRecord) -> None:
        self.steps.append(record)

    def evaluated(self, version: int, evaluation: Evaluation) -> None:
        self.evaluations.append((version, evaluation))


async def test_supervised_training_until_good_enough(tmp_path: Path) -> None:
    run = prepared(tmp_path, "sft.until=0.9", "evaluate.every=10", "control.steps=300", how=prepare_sft)
    seen = Seen()
    folder = await sft(run, [seen])
    evaluations = [evaluation.pass_at_1 for _, evaluation in seen.evaluations]
    assert evaluations[-1] >= 0.9
    load_decoder(folder.checkpoints / "last")
    steps = read_steps(folder.metrics)
    assert len(steps) == 10 * len(evaluations)
    assert [evaluation.pass_at_1 for evaluation in read_evals(folder.evals)] == evaluations
    assert steps[-1].trainer["loss"] < steps[0].trainer["loss"]
    assert steps[0].tokens_trained > steps[0].samples == run.config.control.groups_per_step
    assert math.isnan(steps[0].reward_mean)
    assert steps[-1].staleness_max == 0


async def test_supervised_training_that_falls_short_keeps_what_it_has(tmp_path: Path) -> None:
    run = prepared(tmp_path, "sft.until=0.99", "evaluate.every=2", "control.steps=3", how=prepare_sft)
    seen = Seen()
    with pytest.raises(FreerunError, match=r"below sft\.until=0\.99; the model so far is in"):
        await sft(run, [seen])
    assert [step for step, _ in seen.evaluations] == [2, 3], "every second step, and the last"
    load_decoder(tmp_path / "runs" / "test" / "checkpoints" / "last")


def test_an_answer_to_learn_ends_as_the_chat_template_ends_a_turn(tmp_path: Path) -> None:
    run = prepared(tmp_path, how=prepare_sft)
    own = run.tokenizer.eos_token_id
    for ends, wanted in (((own,), own), ((7, own), own), ((), own), ((7, 8), 7)):
        learned = example_of(run.tasks[0], replace(run, shape=replace(run.shape, eos_token_ids=ends)))
        assert learned.tokens[-1] == wanted
        assert learned.loss_mask[-1]


async def test_supervised_training_knows_no_temperature_and_needs_no_held_out_answers(tmp_path: Path) -> None:
    losses: list[float] = []
    for temperature in (1.0, 0.25):
        hot = (f"rollout.temperature={temperature}", f"name=t{temperature}")
        run = prepared(tmp_path, *hot, "control.steps=1", how=prepare_sft)
        await sft(run, [seen := Seen()])
        losses += [record.trainer["loss"] for record in seen.steps]
        (tmp_path / "held_out.jsonl").write_text(json.dumps({"prompt": "a>"}) + "\n")
    assert losses[0] == losses[1]


def test_killed_it_goes_on_to_the_same_weights_bit_for_bit(tmp_path: Path) -> None:
    settings = ("control.groups_per_step=7", "train.warmup_steps=4", "train.save_every=3")
    endless = prepared(tmp_path, *settings, "name=killed", "control.steps=100000", how=prepare_sft)
    saved, done = kill_in_mid_run(endless, tmp_path, "sft")
    assert done >= saved
    folder = RunFolder(tmp_path / "runs" / "killed")
    assert "done: the model is in" in freerun("resume", folder.path, f"control.steps={saved + 2}").stdout
    assert steps_of(folder) == list(range(1, saved + 3))
    with pytest.raises(ConfigError, match=rf"is complete: {saved + 2} steps are done; raise control\.steps"):
        resume(folder.path, [])

    run = prepared(tmp_path, *settings, "name=unbroken", f"control.steps={saved + 2}", how=prepare_sft)
    whole = asyncio.run(sft(run))
    resumed, unbroken = weights(folder), weights(whole)
    assert all(torch.equal(resumed[key], unbroken[key]) for key in unbroken)
