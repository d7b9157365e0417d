"""What the controller keeps of checkpoints that are written on a machine with another disk."""

import asyncio
from pathlib import Path

import pytest

from freerun.control.state import read_state
from freerun.core import TrainerError
from freerun.core.observer import Observer
from freerun.core.state import RunState
from freerun.machine.machines import Machine
from freerun.observe.folder import RunFolder
from freerun.run.checkpoints import Checkpointer
from freerun.run.resume import newest_checkpoint
from freerun.run.start import Start
from freerun.train.checkpoint_folder import CONTROL, CheckpointFolder, Kept
from freerun.train.protocol import Copied
from tests.fakeclock import run_fast


class TrainerElsewhere:
    """Says that it has copied what it is asked to, and fails where it is told to."""

    shared, fails = False, False

    async def checkpoint(self, version: int, folder: str, control: str) -> Copied:
        if self.fails:
            raise TrainerError("a checkpoint could not be written")
        return Copied(["a", "b"], 2, self.shared, [])

    async def written(self) -> None:
        if self.fails:
            raise TrainerError("a checkpoint could not be written")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def checkpointer(trainer: TrainerElsewhere, folder: RunFolder) -> Checkpointer:
    return Checkpointer(trainer, folder, 1, Observer(), 60.0, keep=2)  # type: ignore[arg-type]


async def test_a_checkpoint_elsewhere_is_found_once_it_is_complete(folder: RunFolder) -> None:
    saving = checkpointer(TrainerElsewhere(), folder)
    there = CheckpointFolder(folder.checkpoints)
    for version, finished in ((1, []), (2, [1]), (3, [1, 2]), (4, [2, 3])):
        await saving.settled(RunState(version))
        assert list(there.finished()) == finished, "the last one is only begun"
    await saving.written()
    found = newest_checkpoint(folder)
    assert found.checkpoint
    assert (found.checkpoint.name, found.damaged) == ("step-4", {})
    assert read_state(found.checkpoint / CONTROL) == RunState(4)
    assert Kept.read(found.checkpoint) == Kept(["a", "b"], 2)
    machines = [Machine(name, "", 1, 1) for name in ("b", "c", "a")]
    assert [one.name for one in Start(folder, checkpoint=found.checkpoint).placed(machines)] == ["c", "a", "b"]


async def test_one_that_failed_is_not_kept(folder: RunFolder) -> None:
    trainer = TrainerElsewhere()
    saving = checkpointer(trainer, folder)
    await saving.settled(RunState(1))
    trainer.fails = True
    with pytest.raises(TrainerError):
        await saving.settled(RunState(2))
    trainer.fails = False
    await saving.written()
    assert not CheckpointFolder(folder.checkpoints).finished()


async def test_a_shared_folder_is_the_trainers_to_write(folder: RunFolder) -> None:
    trainer = TrainerElsewhere()
    trainer.shared = True
    saving = checkpointer(trainer, folder)
    await saving.settled(RunState(1))
    await saving.written()
    assert not folder.checkpoints.exists()


class SlowTrainer(TrainerElsewhere):
    """Takes half a minute to copy what a checkpoint needs."""

    shared = True

    def __init__(self) -> None:
        self.asked: list[float] = []

    async def checkpoint(self, version: int, folder: str, control: str) -> Copied:
        self.asked.append(asyncio.get_running_loop().time())
        await asyncio.sleep(30)
        return await super().checkpoint(version, folder, control)


@pytest.mark.parametrize(("every", "expected"), [(None, [600, 2130]), (40, [400, 830, 1260, 1690, 2120]), (0, [])])
def test_a_checkpoint_is_due_after_steps_or_minutes(every: int | None, expected: list[int], folder: RunFolder) -> None:
    """Steps of ten seconds for an hour's two thirds. A copy of 30 s is 2% of 25 minutes."""
    trainer = SlowTrainer()

    async def steps() -> None:
        saving = Checkpointer(trainer, folder, every, Observer(), 60.0, keep=2)  # type: ignore[arg-type]
        version = 0
        while asyncio.get_running_loop().time() < 2400:
            await asyncio.sleep(10)
            version += 1
            await saving.settled(RunState(version))

    run_fast(steps())
    assert trainer.asked == pytest.approx(expected)
