"""How many groups should be on their way to the trainer: as few as keep it busy.

The paper's formula allows η + 1 batches at once. But a group that is admitted behind d others is trained on some
d / groups_per_step versions later, so whatever is admitted before it is needed only grows old. One batch ahead of the
one in training is the least. More is needed where generating a batch takes longer than training on one, or where
answers differ in length and the batch must not wait for its longest.

Consumes what each taking of a batch was like; produces the limit.
"""

import math

GROWTH, SHRINKAGE = 4, 2
"""A quarter of a batch more, or half of what was left over less."""
WORTH_IT = 0.03
"""A wait of this share of a step is worth an older group."""


class Stock:
    """Grows when the trainer had to wait and more could have been admitted. Shrinks when groups were left over and the
    trainer has not waited for long: for the longest of long-tailed answers it waits once in η + 1 steps or so, and then
    learns from what has come in meanwhile."""

    def __init__(self, batch: int, max_staleness: int) -> None:
        self._batch, self._calm_after = batch, max_staleness + 1
        self._most = batch * (max_staleness + 1)
        self.limit = min(2 * batch, self._most)
        self._calm = 0
        self._held = False

    def holds(self, groups: int) -> bool:
        """Whether another one should wait, when so many are on their way."""
        full = groups >= self.limit
        self._held = self._held or full
        return full

    def taken(self, waited_s: float, step_s: float, left: int) -> None:
        """The trainer has its batch, after so long a wait, so long after the one before; `left` more are ready."""
        waited = waited_s > WORTH_IT * step_s
        self._calm = 0 if waited else self._calm + 1
        if waited and self._held:
            self.limit = min(self.limit + math.ceil(self._batch / GROWTH), self._most)
        if self._calm > self._calm_after:
            self.limit = max(self.limit - math.ceil(left / SHRINKAGE), self._batch)
        self._held = False
