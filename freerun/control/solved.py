"""Tasks that need no practice for a while, as with flash cards: what is known comes back less and less often.

A task of which every answer passed teaches nothing, and would most likely teach nothing in the next pass over the data
either. It sits out one pass; when it then is right again, two, four, and so on up to `most`. A single miss, and it is
in every pass again.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class SitOut:
    passes: int
    """How many it sits out."""
    until: int
    """The epoch in which it is dealt again."""


class SolvedTasks:
    """By the tasks' ids. `most` 0: nothing sits out."""

    def __init__(self, most: int = 0, pass_reward: float = 1.0, resting: dict[str, SitOut] | None = None) -> None:
        self._most = most
        self._pass_reward = pass_reward
        self._resting = dict(resting or {})

    def sits_out(self, task: str, epoch: int) -> bool:
        rest = self._resting.get(task)
        return rest is not None and epoch < rest.until

    def note(self, task: str, epoch: int, rewards: Sequence[float]) -> None:
        """What the answers were worth when the task was dealt in that epoch."""
        before = self._resting.pop(task, None)
        passes = min(2 * before.passes if before else 1, self._most)
        if passes and min(rewards) >= self._pass_reward:
            self._resting[task] = SitOut(passes, epoch + 1 + passes)

    def __len__(self) -> int:
        """Tasks that were solved when they were last asked."""
        return len(self._resting)

    @property
    def resting(self) -> dict[str, SitOut]:
        """For a checkpoint: also those whose rest is over and that have not been asked again."""
        return dict(self._resting)
