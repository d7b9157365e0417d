"""The audit of a log finds tasks that were lost or trained twice, and knows undone steps from those that count."""

from pathlib import Path

from freerun.bench.audit import Audit, RunLog, audit
from freerun.core.groups import DropReason, GroupEvent, Position, Stage


class Told:
    """Tells a log of a run of two groups a step what happens to the tasks of an epoch."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.log = RunLog(str(file))

    def dealt(self, *indices: int, epoch: int = 0) -> None:
        for index in indices:
            self._event(Stage.DEALT, index, epoch)

    def trained(self, version: int, *indices: int, epoch: int = 0) -> None:
        for index in indices:
            self._event(Stage.TRAINED, index, epoch, version)

    def dropped(self, reason: DropReason, *indices: int) -> None:
        for index in indices:
            self._event(Stage.DROPPED, index, 0, reason=reason)

    def resumed(self) -> None:
        self.log.close()
        self.log = RunLog(str(self.file))

    def found(self) -> Audit:
        self.log.close()
        return audit(self.file)

    def _event(self, stage: Stage, index: int, epoch: int, version: int = 0, reason: DropReason | None = None) -> None:
        self.log.group(GroupEvent(stage, 0, f"task {index}", Position(epoch, index), version, reason=reason))


def test_what_ended_or_was_left_off_is_neither_lost_nor_twice(tmp_path: Path) -> None:
    told = Told(tmp_path / "log.jsonl")
    told.dealt(*range(8))
    told.trained(0, 1, 0)
    told.dropped(DropReason.NO_SIGNAL, 2)
    told.trained(1, 3, 4)
    told.dropped(DropReason.RUN_ENDED, 5, 6)
    assert told.found() == Audit(trained=4, lost=0, twice=0), "7 was dealt and never begun"


def test_a_task_that_failed_or_was_never_dealt_is_lost(tmp_path: Path) -> None:
    told = Told(tmp_path / "log.jsonl")
    told.dealt(0, 1, 3, 4)
    told.trained(0, 0, 3)
    told.dropped(DropReason.ROLLOUT_FAILED, 1)
    told.dropped(DropReason.RUN_ENDED, 4)
    assert told.found() == Audit(trained=2, lost=2, twice=0), "1 failed, 2 was passed over"


def test_a_task_may_be_trained_once_an_epoch(tmp_path: Path) -> None:
    told = Told(tmp_path / "log.jsonl")
    told.dealt(0, 1)
    told.trained(0, 0, 1)
    told.dealt(0, 1, epoch=1)
    told.trained(1, 0, epoch=1)
    told.trained(1, 1)
    told.trained(2, 1, epoch=1)
    assert told.found() == Audit(trained=5, lost=0, twice=1)


def test_steps_after_the_checkpoint_are_undone_by_a_resumed_run(tmp_path: Path) -> None:
    told = Told(tmp_path / "log.jsonl")
    told.dealt(*range(9))
    for version in range(4):
        told.trained(version, 2 * version, 2 * version + 1)
    told.resumed()  # from version 2, in another order; it does not come as far
    told.dealt(4, 5, 6, 7)
    told.trained(2, 4, 7)
    told.dropped(DropReason.RUN_ENDED, 5, 6)
    assert told.found() == Audit(trained=6, lost=0, twice=0)


def test_what_a_resumed_run_forgets_is_lost(tmp_path: Path) -> None:
    told = Told(tmp_path / "log.jsonl")
    told.dealt(0, 1, 2, 3)
    told.trained(0, 0, 1)
    told.resumed()
    told.dealt(3, 4)
    told.trained(1, 3, 4)
    assert told.found() == Audit(trained=4, lost=1, twice=0), "2 was on its way when the run stopped"
