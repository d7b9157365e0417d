"""A trainer of two ranks, started by the launcher: whole runs, refusals, and a rank that ends too early."""

import asyncio
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from freerun.core import Batch, FinishReason, Group, ProcessDied, Sample, Task, TrainerError
from freerun.machine import processes
from freerun.plan.placement import RunKind
from freerun.run import training
from freerun.run.hosts import hosts_of
from freerun.run.prepare import Prepared
from freerun.run.resume import resume
from freerun.run.running import run_processes
from freerun.run.start import create_folder
from freerun.train.checkpoint_folder import CheckpointFolder
from tests.children import child_of
from tests.run.test_train import prepared


def batch(version: int, tokens: list[int]) -> Batch:
    """Two answers, the first a token longer; so it is the first rank's, and `tokens` are the second's."""
    made = [
        Sample(answer, [False] + [True] * (len(answer) - 1), [-1.0] * len(answer), [version] * len(answer),
               FinishReason.STOP, reward=float(reward))
        for reward, answer in enumerate(([3, 4, 5, 6, 1], tokens))
    ]  # fmt: skip
    return Batch(version, [Group(0, Task("t", "", []), made, version)])


async def work_until_it_fails(run: Prepared, folder: Path) -> None:
    """Everything a trainer is asked for, refusals among it; in the end a token that the model does not have."""
    fine = batch(0, [3, 7, 7, 1])
    async with (
        hosts_of(run.config, print) as hosts,
        run_processes(hosts, run, create_folder(run), run.plan(RunKind.SFT)) as running,
    ):
        trainer = running.trainer
        result = await trainer.step(fine)
        assert result.version == 1
        assert result.weights
        assert result.weights.version == 1
        assert [(part.backend, part.version) for part in result.weights.parts] == [("shm", 1)] * 2
        with pytest.raises(TrainerError, match="a batch for version 0 came to a trainer at version 1"):
            await trainer.step(fine)
        with pytest.raises(TrainerError, match="version 7 is gone"):
            await trainer.checkpoint(7, str(folder / "checkpoints"), "{}")
        (folder / "file").write_text("")
        assert "Not a directory" in (await trainer.checkpoint(1, str(folder / "file"), "{}")).refused
        assert [len(row) for row in await trainer.score(fine.samples)] == [4, 3]
        with pytest.raises(TrainerError, match="versions only go up"):
            await trainer.publish()
        assert (await trainer.sft(fine.samples)).version == 2
        assert (await trainer.publish()).version == 2
        async with asyncio.timeout(10):
            await trainer.step(batch(2, [3, 1000, 7, 1]))


async def test_a_rank_that_fails_ends_the_run_with_its_error(tmp_path: Path) -> None:
    with pytest.raises(ProcessDied, match="the trainer 1 process ended with code 1") as caught:
        await work_until_it_fails(prepared(tmp_path, "train.ranks=2"), tmp_path)
    assert caught.value.detail.endswith("IndexError: index out of range in self")


async def test_a_run_of_two_ranks_and_its_rest_with_one(tmp_path: Path) -> None:
    run = prepared(
        tmp_path,
        "train.ranks=2",
        "resources.engines=2",
        "control.steps=30",
        "control.max_staleness=1",
        "train.save_every=10",
    )
    outcome = await training.train(run)
    assert [record.step for record in outcome.steps] == list(range(1, 31))
    fresh = [r.trainer["engine_mismatch_max"] for r in outcome.steps if "engine_mismatch_max" in r.trainer]
    assert max(fresh) < 1e-3, "engine and trainer disagree at equal weights"
    rewards = [record.reward_mean for record in outcome.steps]
    assert sum(rewards[-5:]) > sum(rewards[:5]) + 0.5
    folder = outcome.folder
    assert list(CheckpointFolder(folder.checkpoints).finished()) == [20, 30]
    assert (folder.logs / "trainer 1.log").read_text() == ""
    before = load_file(folder.checkpoints / "last" / "model.safetensors")

    again, start = resume(folder.path, ["train.ranks=1", "control.steps=32"])
    await training.train(again, start=start)
    after = load_file(folder.checkpoints / "last" / "model.safetensors")
    assert 0 < max((after[name] - before[name]).abs().max().item() for name in before) < 0.1


async def test_a_killed_rank_ends_the_run_with_that_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have their part of every sequence."""
    started: list[processes.Processes] = []

    class Remembered(processes.Processes):
        async def __aenter__(self) -> processes.Processes:
            started.append(self)
            return self

    monkeypatch.setattr("freerun.run.running.Processes", Remembered)
    run = prepared(tmp_path, "train.ranks=2", "train.context_parallel=2", "control.steps=100000", "control.restarts=0")
    going = asyncio.create_task(training.train(run))
    metrics = tmp_path / "runs" / "test" / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_text().count("\n") >= 3):
        await asyncio.sleep(0.02)
        assert not going.done()
    began = time.monotonic()
    child_of(started[0], "trainer 1").process.kill()
    with pytest.raises(ProcessDied, match="the trainer 1 process was killed by SIGKILL"):
        await going
    assert time.monotonic() - began < 10
    assert all(child.returncode is not None for child in started[0]._children)
