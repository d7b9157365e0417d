"""Whole runs with every real process: that they learn, that η = 0 is synchronous training, what they leave behind."""

import asyncio
import json
import random
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from freerun.config.load import load_config
from freerun.core import Batch, EngineError, Group
from freerun.data.stream import TaskStream
from freerun.engines.base import Client
from freerun.engines.config import EngineConfig
from freerun.engines.embedded.in_process import InProcessEngine
from freerun.engines.http import HttpEngine
from freerun.models.checkpoint import load_decoder
from freerun.models.tiny import make_model
from freerun.observe.folder import RunFolder
from freerun.observe.records import read_evals, read_steps
from freerun.observe.sample_reader import SampleReader
from freerun.observe.search import SampleFilter
from freerun.observe.status import read_status
from freerun.observe.timeline import read_spans
from freerun.rollouts.base import trajectories_of
from freerun.run import training
from freerun.run.evaluating import evaluate
from freerun.run.hosts import hosts_of
from freerun.run.prepare import Prepared, prepare, prepare_eval
from freerun.run.running import run_processes
from freerun.run.start import create_folder
from freerun.train.checkpoint_folder import CheckpointFolder
from freerun.train.drift import PARTS
from freerun.train.learner import Learner
from tests.children import child_of


def prepared(folder: Path, *overrides: str, how: Any = prepare) -> Prepared:
    """A task that a model of 40k parameters learns from nothing in a few dozen steps: repeat the prompt's letter."""
    if not (folder / "model").exists():
        make_model(folder / "model", "abcdef>", seed=1, hidden=32)
        dice = random.Random(0)
        rows = [{"prompt": f"{letter}>", "answer": letter} for letter in dice.choices("abcdef", k=400)]
        for name, part in (("train", rows[:360]), ("held_out", rows[360:])):
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    base = [
        "name=test", f"runs={folder / 'runs'}", f"model.path={folder / 'model'}", "data.max_prompt_tokens=8",
        f"data.source={folder / 'train.jsonl'}", f"held_out.source={folder / 'held_out.jsonl'}",
        "rollout.group_size=8", "rollout.max_new_tokens=1", "control.groups_per_step=8", "train.lr=5e-3",
        "train.weight_decay=0", "engine.cache_tokens=4096", "engine.max_running=64",
    ]  # fmt: skip
    return how(*load_config(None, [*base, *overrides]))  # type: ignore[no-any-return]


async def test_an_asynchronous_run_learns_and_leaves_a_readable_folder(tmp_path: Path) -> None:
    run = prepared(tmp_path, "control.steps=60", "control.max_staleness=2", "evaluate.every=20", "train.save_every=40")
    outcome = await training.train(run)
    first, last = outcome.evaluations[0], outcome.evaluations[-1]
    assert first.pass_at_1 < 0.4
    assert last.pass_at_1 > 0.8

    folder = outcome.folder
    steps = read_steps(folder.metrics)
    assert [record.step for record in steps] == list(range(1, 61))
    assert max(record.staleness_max for record in steps) in (1, 2), "it was asynchronous, within its bound"
    assert sum(record.samples for record in steps) == 60 * 64
    line = json.loads(folder.metrics.read_text().splitlines()[-1])
    wanted = """step version time_s reward_mean reward_mean_all samples tokens_trained tokens_per_s staleness_mean
        staleness_max truncated_share dropped engine_idle_s trainer_idle_s update_pause_s"""
    assert set(wanted.split()) <= line.keys()
    fresh = [r.trainer["engine_mismatch_max"] for r in steps if "engine_mismatch_max" in r.trainer]
    assert fresh
    assert max(fresh) < 1e-3, "engine and trainer disagree at equal weights"
    for figures in (record.trainer for record in steps):
        parts = [figures[f"drift_{part}"] for part in PARTS]
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(figures["drift"], rel=0.05, abs=1e-9)
        assert figures["mismatched_tokens"] == 0
    assert [e.version for e in read_evals(folder.evals)][-1] == 60
    _check_watched(folder)
    assert "60 steps" in folder.report.read_text()
    assert "max_staleness: 2  # command line" in folder.config.read_text()
    load_decoder(folder.checkpoints / "last")
    assert list(CheckpointFolder(folder.checkpoints).finished()) == [40, 60], "every 40th and the last"

    again = await evaluate(
        prepared(tmp_path, f"model.path={folder.checkpoints / 'last'}", "evaluate.samples=4", how=prepare_eval),
        lambda: None,
    )
    assert again.low - 0.1 < last.pass_at_1 < again.high + 0.1
    assert again.pass_at_k >= again.pass_at_1


def _check_watched(folder: RunFolder) -> None:
    """What a page about the run reads: every sample, every process in the timeline, how it ended."""
    with closing(SampleReader(folder.samples)) as reader:
        assert reader.page(SampleFilter(fate="trained")).total == 60 * 64
        one = reader.one(reader.page(SampleFilter(step_max=1)).rows[0].id)
        assert (one.step, "".join(one.tokens).startswith(one.text), len(one.logprobs)) == (1, True, len(one.tokens))
    spans = read_spans(folder.timeline)
    tracks = {(span.process, span.track) for span in spans}
    assert {("engine 0", "generate"), ("trainer", "step"), ("trainer", "write"), ("evaluator", "evaluate")} <= tracks
    assert ("controller", "publish") in tracks
    judged = [span for span in spans if span.process == "rewards"]
    assert sum(span.args["judgements"] for span in judged) >= len(judged) > 0
    for track in tracks - {("controller", "publish")}:
        of_track = [span for span in spans if (span.process, span.track) == track]
        assert all(one.end_s <= other.start_s + 1e-3 for one, other in pairwise(of_track)), track
    status = read_status(folder.path)
    assert status
    assert (status.state, status.step, status.version) == ("done", 60, 60)
    assert {"controller", "engine 0", "trainer", "rewards", "evaluator"} <= status.doing.keys()


async def synchronous_training(run: Prepared, steps: int) -> torch.nn.Module:
    """The synchronous algorithm, written plainly: sample a batch, judge it, learn, take the new weights, repeat."""
    folder, config = Path(run.config.model.path), run.config
    engine = InProcessEngine(load_decoder(folder), EngineConfig(cache_tokens=4096))
    learner = Learner.from_folder(folder, config.train, config.rollout.temperature, config.seed)
    rollout = training.rollout_of(run)
    stream = TaskStream(run.tasks, seed=config.seed, shuffle=True, epochs=None)
    number = 0
    for version in range(steps):
        groups = []
        for _ in range(config.control.groups_per_step):
            task = next(stream)
            answers = trajectories_of(await rollout(task, Client(engine, f"{config.seed}/{number}/0")))
            samples = [answer.sample for answer in answers if answer.sample]
            for sample in samples:
                sample.reward = float(sample.text == task.answer)
            groups.append(Group(number, task, samples, version))
            number += 1
        learner.step(Batch(version, groups))
        engine.swap_weights(version + 1, dict(learner.decoder.named_parameters()))
    return learner.decoder


async def test_engines_of_a_run_listen_to_the_run_alone(tmp_path: Path) -> None:
    run = prepared(tmp_path)
    async with (
        hosts_of(run.config, print) as hosts,
        run_processes(hosts, run, create_folder(run), run.plan(evaluates=True)) as running,
    ):
        assert running.evaluation_engine
        for engine in (*running.engines.values(), running.evaluation_engine):
            await engine.stats()
            async with HttpEngine(engine.url) as stranger:
                with pytest.raises(EngineError, match="401"):
                    await stranger.stats()


async def test_no_staleness_is_the_synchronous_algorithm(tmp_path: Path) -> None:
    """All processes, HTTP and shared memory in between: the same parameters as the plain loop, to rounding."""
    run = prepared(tmp_path, "control.steps=6", "control.max_staleness=0", "train.minibatches=2")
    outcome = await training.train(run)
    assert all(record.staleness_max == 0 for record in outcome.steps)
    ours = load_decoder(outcome.folder.checkpoints / "last")
    plain = await synchronous_training(run, 6)
    start = load_decoder(tmp_path / "model")
    moved = 0.0
    for mine, other, before in zip(ours.parameters(), plain.parameters(), start.parameters(), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-4)
        moved = max(moved, (mine - before).abs().max().item())
    assert moved > 0.01


async def test_a_trainer_killed_in_mid_run_ends_the_run_with_that_cause(tmp_path: Path) -> None:
    from freerun.core import ProcessDied
    from freerun.machine import processes

    run = prepared(tmp_path, "control.steps=100000", "control.restarts=0")
    started: list[processes.Processes] = []
    original = processes.Processes.__init__

    def remember(self: processes.Processes, module: str, logs: Path, fork: bool = True) -> None:
        original(self, module, logs, fork)
        started.append(self)

    processes.Processes.__init__ = remember  # type: ignore[method-assign]
    try:
        going = asyncio.create_task(training.train(run))
        metrics = tmp_path / "runs" / "test" / "metrics.jsonl"
        while not (metrics.exists() and metrics.read_text().count("\n") >= 3):
            await asyncio.sleep(0.02)
            assert not going.done()
        child_of(started[0], "trainer").process.kill()
        with pytest.raises(ProcessDied, match="the trainer process was killed by SIGKILL"):
            await going
    finally:
        processes.Processes.__init__ = original  # type: ignore[method-assign]
    assert all(child.returncode is not None for child in started[0]._children)
    assert (tmp_path / "runs" / "test" / "report.html").is_file()
    status = read_status(tmp_path / "runs" / "test")
    assert status
    assert (status.ended or "").startswith("failed: the trainer process was killed by SIGKILL")
