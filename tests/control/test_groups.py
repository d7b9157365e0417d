"""The book of groups: what it counts, what it refuses, and that it does not grow."""

from freerun.core import Task
from freerun.rewards.base import JudgeReason, Verdict
from tests.control.test_promises import World, audit
from tests.fakeclock import run_fast


class Unreadable(World):
    """Every third answer cannot be read, every seventh not be judged."""

    asked = 0

    async def judge(self, task: Task, text: str) -> Verdict:
        self.asked += 1
        if self.asked % 7 == 0:
            return Verdict(None, JudgeReason.CRASH)
        if self.asked % 3 == 0:
            return Verdict(0.0, JudgeReason.UNPARSEABLE)
        return Verdict(1.0, JudgeReason.OK)


def test_answers_that_cannot_be_read_are_trained_on_and_counted_apart() -> None:
    world = Unreadable(0, group_size=4)
    run_fast(world.go())
    audit(world)
    crashed, unreadable = world.asked // 7, world.asked // 3 - world.asked // 21
    counts = {"ok": world.asked - crashed - unreadable, "unparseable": unreadable, "crash": crashed}
    assert world.run.book.tally.judgements == counts
    assert all(counts.values())
    assert any(sample.reward == 0 for batch in world.batches for sample in batch.samples)
