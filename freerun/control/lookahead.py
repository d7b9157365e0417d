"""How many groups should be on their way to the trainer: as few as keep it busy.

The paper's formula allows η + 1 batches at once. But a group that is admitted behind d others is trained on some
d / groups_per_step versions later, so whatever is admitted before it is needed only grows old. One batch ahead of the
one in training is the least. More is needed where generating a batch takes longer than training on one, or where
answers differ in length and the batch must not wait for its longest.

Where the judge is what everything waits for, more on their way would only queue there. So none begins while a whole
batch waits for it; the limit does not grow while groups wait for it all the time; and the fewest that ever waited in
three steps are too many, of which half are given up.

Consumes what each taking of a batch was like, and how many groups wait for the judge; produces the limit.
"""

import math
from collections.abc import Callable

GROWTH, SHRINKAGE = 4, 2
"""A quarter of a batch more, or half of what was left over less."""
WORTH_IT = 0.03
"""A wait of this share of a step is worth an older group."""
QUEUED_STEPS = 3
"""In a row that groups must have queued at every moment: what was admitted at the first may come to the judge at the
last."""


class LookaheadLimit:
    """Grows when the trainer had to wait and more could have been admitted. Shrinks when groups were left over and the
    trainer has not waited for long: for the longest of long-tailed answers it waits once in η + 1 steps or so, and then
    learns from what has come in meanwhile. `queued` says how many groups wait for the judge."""

    def __init__(self, batch: int, max_staleness: int, queued: Callable[[], int] = lambda: 0) -> None:
        self._batch, self._calm_after = batch, max_staleness + 1
        self._most = batch * (max_staleness + 1)
        self.limit = min(2 * batch, self._most)
        self._calm = 0
        self._held = False
        self._queued = queued
        self._least_queued = 0
        self._queued_steps = 0

    def holds(self, groups: int) -> bool:
        """Whether another one should wait, when so many are on their way: too many, or a whole batch at the judge."""
        if self._queued() >= self._batch:
            return True
        full = groups >= self.limit
        self._held = self._held or full
        return full

    @property
    def queues(self) -> bool:
        """Whether groups queue for the judge: a whole batch, or some at every moment since the last was taken."""
        return self._least_queued > 0 or self._queued() >= self._batch

    def judging(self) -> None:
        """To be called before the judge is given more: its queue is never shorter than in such a moment."""
        self._least_queued = min(self._least_queued, self._queued())

    def taken(self, waited_s: float, step_s: float, left: int) -> None:
        """The trainer has its batch, after so long a wait, so long after the one before; `left` more are ready."""
        self.judging()
        waited = waited_s > WORTH_IT * step_s
        self._calm = 0 if waited else self._calm + 1
        self._queued_steps = self._queued_steps + 1 if self._least_queued else 0
        if waited and self._held and not self._least_queued:
            self.limit = min(self.limit + math.ceil(self._batch / GROWTH), self._most)
        if self._calm > self._calm_after:
            self._shrink(left)
        if self._queued_steps == QUEUED_STEPS:
            self._shrink(self._least_queued)
            self._queued_steps = 0
        self._held = False
        if not self._queued_steps:
            self._least_queued = self._queued()

    def _shrink(self, spare: int) -> None:
        self.limit = max(self.limit - math.ceil(spare / SHRINKAGE), self._batch)
