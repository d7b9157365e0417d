"""Trainers that are killed in the middle of runs with every real process: the runs go on, and learn the same."""

import asyncio
import os
import random
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from freerun.core import Batch, ProcessDied, TrainerError, TrainerLost
from freerun.core.observer import Observer
from freerun.core.records import StepRecord
from freerun.machine.processes import Child, ChildProcess, Processes
from freerun.observe.folder import RunFolder, iter_lines
from freerun.plan.placement import RunKind
from freerun.run import training
from freerun.run.hosts import hosts_of
from freerun.run.kept_batches import BatchesInMemory
from freerun.run.prepare import prepare_sft
from freerun.run.running import RunProcesses, run_processes
from freerun.run.start import create_folder
from freerun.run.supervised import sft
from freerun.train.checkpoint_folder import CheckpointFolder
from tests.run.test_ranks import batch
from tests.run.test_resume import EXACT, JUDGE, weights
from tests.run.test_train import prepared

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[ChildProcess]]:
    """Every process that a run has started, by name; the newest last."""
    found: dict[str, list[ChildProcess]] = {}
    begin = Processes.begin

    async def remembered(self: Processes, name: str, *given: Any, **more: Any) -> Child:
        child = await begin(self, name, *given, **more)
        assert isinstance(child, ChildProcess)
        found.setdefault(name, []).append(child)
        return child

    monkeypatch.setattr(Processes, "begin", remembered)
    return found


class Killer(Observer):
    """Kills the newest process of that name while it learns, some time after it was asked to: before these steps."""

    def __init__(self, started: dict[str, list[ChildProcess]], victim: str, after_s: dict[int, float]) -> None:
        self._started, self._victim, self._after_s = started, victim, after_s
        self.how = signal.SIGKILL
        self.killed = 0
        self._struck: list[ChildProcess] = []
        self.scratch: set[str] = set()
        self.notes: list[str] = []
        self.trained: list[int] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def step(self, record: StepRecord) -> None:
        [folder] = Path("/dev/shm").glob(f"freerun-{os.getpid()}-*")
        self.scratch = set(os.listdir(folder))

    def learning(self, batch: Batch, masked_tokens: int) -> None:
        self.trained += [group.id for group in batch.groups]
        if (after_s := self._after_s.pop(batch.version, None)) is not None:
            asyncio.get_running_loop().call_later(after_s, self._kill)

    def _kill(self) -> None:
        child = self._started[self._victim][-1]
        if child in self._struck or child.returncode is not None:  # the next one, as soon as it is there
            asyncio.get_running_loop().call_later(0.002, self._kill)
            return
        child.process.send_signal(self.how)
        self._struck.append(child)
        self.killed += 1


def steps_of(folder: RunFolder) -> list[int]:
    return [line["step"] for line in iter_lines(folder.metrics)]


def left_in_shared_memory(pids: list[int]) -> list[str]:
    """Of this process, and those of a run."""
    names = "|".join(map(str, [os.getpid(), *pids]))
    return [name for name in os.listdir("/dev/shm") if re.search(rf"(?<!\d)({names})(?!\d)", name)]


async def test_a_killed_trainer_comes_to_the_same_weights_bit_for_bit(
    tmp_path: Path, started: dict[str, list[ChildProcess]]
) -> None:
    (tmp_path / "judge.py").write_text(JUDGE)
    exact = [*EXACT, f"reward.judge={tmp_path / 'judge.py'}:anything", "control.steps=14"]
    whole = await training.train(prepared(tmp_path, *exact, "name=unbroken"))
    unbroken = weights(whole.folder)
    for save_every, redone in ((0, "from step 0, and redoes [78] steps"), (4, "from step 4, and redoes [34] steps")):
        started.clear()
        dice = random.Random(save_every)
        killer = Killer(started, "trainer", {step: dice.uniform(0, 0.02) for step in (0, 7, 8)})
        run = prepared(tmp_path, *exact, f"name=killed-{save_every}", f"train.save_every={save_every}")
        outcome = await training.train(run, guests=[killer])
        assert killer.killed == 3
        told = "the trainer process was killed by SIGKILL; it goes on"
        said = [note for note in killer.notes if note.startswith(told)]
        assert len(said) == 3, killer.notes
        assert re.search(f"{redone}$", said[1]), "perhaps the step was done in the moment before"
        assert steps_of(outcome.folder) == list(range(1, 15)), "steps that are redone write no second lines"
        assert [step.reward_mean for step in outcome.steps] == [step.reward_mean for step in whole.steps]
        ours = weights(outcome.folder)
        assert all(torch.equal(ours[key], unbroken[key]) for key in unbroken)
        assert len(started["engine 0"]) == 1, "engines go on"
        assert killer.scratch == {"trainer", "weights-0-0", "weights-0-1"}
        assert not left_in_shared_memory([child.process.pid for every in started.values() for child in every])
        assert not list(outcome.folder.checkpoints.glob("*.unfinished"))


async def test_supervised_training_goes_on_to_the_same_weights(
    tmp_path: Path, started: dict[str, list[ChildProcess]]
) -> None:
    settings = ("control.groups_per_step=7", "train.warmup_steps=4", "train.save_every=3", "control.steps=8")
    killer = Killer(started, "trainer", {5: 0.005})
    folder = await sft(prepared(tmp_path, *settings, "name=killed", how=prepare_sft), [killer])
    assert killer.killed == 1
    assert steps_of(folder) == list(range(1, 9))
    ours, unbroken = weights(folder), weights(await sft(prepared(tmp_path, *settings, "name=whole", how=prepare_sft)))
    assert all(torch.equal(ours[key], unbroken[key]) for key in unbroken)


@pytest.mark.parametrize(
    ("how", "victim", "steps", "ranks"),
    [
        (signal.SIGKILL, "trainer", (3, 9), 1),
        (signal.SIGSTOP, "trainer", (6,), 1),
        (signal.SIGKILL, "trainer 1", (8,), 2),
    ],
)
async def test_an_asynchronous_run_does_all_its_steps(
    tmp_path: Path,
    started: dict[str, list[ChildProcess]],
    monkeypatch: pytest.MonkeyPatch,
    how: signal.Signals,
    victim: str,
    steps: tuple[int, ...],
    ranks: int,
) -> None:
    monkeypatch.setattr("freerun.machine.stopped.STOPPED_S", 0.5)
    dice = random.Random(victim)
    killer = Killer(started, victim, {step: dice.uniform(0, 0.1) for step in steps})
    killer.how = how
    run = prepared(
        tmp_path, "control.steps=16", "control.max_staleness=4", f"train.ranks={ranks}", "train.save_every=5",
        "resources.engines=2",
    )  # fmt: skip
    outcome = await training.train(run, guests=[killer])
    assert killer.killed == len(steps)
    assert len(started["trainer"]) == 1 + len(steps)
    assert steps_of(outcome.folder) == list(range(1, 17))
    assert max(record.staleness_max for record in outcome.steps) <= 4
    assert len(killer.trained) == len(set(killer.trained)) == 16 * 8, "every task once"
    assert 16 in CheckpointFolder(outcome.folder.checkpoints).finished()
    assert [len(started[engine]) for engine in ("engine 0", "engine 1")] == [1, 1], "engines go on"


@asynccontextmanager
async def serving(tmp_path: Path, *overrides: str) -> AsyncIterator[tuple[RunProcesses, Killer, BatchesInMemory]]:
    """A trainer by itself, with what it is to be redone from."""
    run = prepared(tmp_path, "resources.engines=1", *overrides)
    folder = create_folder(run)
    batches, killer = BatchesInMemory(folder), Killer({}, "", {})
    async with (
        hosts_of(run.config, print) as hosts,
        run_processes(hosts, run, folder, run.plan(RunKind.SFT)) as running,
    ):
        running.trainer.serve(killer, batches)
        yield running, killer, batches


async def test_a_checkpoint_that_its_writer_could_not_complete_is_written_by_the_next(
    tmp_path: Path, started: dict[str, list[ChildProcess]]
) -> None:
    async with serving(tmp_path) as (running, killer, batches):
        folder = tmp_path / "runs" / "test" / "checkpoints"
        for version in range(2):
            given = batch(version, [3, 7, 7, 1])
            batches.learning(given, 0)
            await running.trainer.step(given)
        started["trainer"][0].process.send_signal(signal.SIGSTOP)
        copying = asyncio.create_task(running.trainer.checkpoint(2, str(folder), "{}"))
        started["trainer"][0].process.kill()
        await copying
        started["trainer"][1].process.kill()
        (folder / "step-1.unfinished").mkdir(parents=True)
        await running.trainer.written()
        assert list(CheckpointFolder(folder).finished()) == [2]
        assert not list(folder.glob("*.unfinished"))
        assert len(started["trainer"]) == 3
        assert [note.rpartition("; ")[2] for note in killer.notes] == ["it goes on from step 0, and redoes 2 steps"] * 2


async def test_a_failure_that_comes_back_ends_the_run_with_its_cause(
    tmp_path: Path, started: dict[str, list[ChildProcess]]
) -> None:
    """A token that the model does not have is an error of torch's."""
    notes: list[str] = []

    async def work_until_it_fails() -> None:
        async with serving(tmp_path) as (running, killer, batches):
            killer.notes = notes
            with pytest.raises(TrainerError, match="a batch for version 3 came to a trainer at version 0"):
                await running.trainer.step(batch(3, [3, 7, 7, 1]))
            assert len(started["trainer"]) == 1, "what we refuse would be refused again"
            wrong = batch(0, [3, 1000, 7, 1])
            batches.learning(wrong, 0)
            await running.trainer.step(wrong)

    with pytest.raises(TrainerLost, match="IndexError: index out of range") as caught:
        await work_until_it_fails()
    assert "Traceback" in caught.value.detail
    assert len(started["trainer"]) == 3
    assert notes[-1] == "the trainer ended 3 times in a row at step 1 like this"


async def test_a_trainer_whose_batches_were_not_kept_ends_the_run_with_its_death(
    tmp_path: Path, started: dict[str, list[ChildProcess]]
) -> None:
    async def work() -> None:
        async with serving(tmp_path) as (running, _, _):
            await running.trainer.step(batch(0, [3, 7, 7, 1]))
            started["trainer"][0].process.kill()
            await running.trainer.publish()

    with pytest.raises(ProcessDied, match="the trainer process was killed by SIGKILL"):
        await work()
    assert len(started["trainer"]) == 1
