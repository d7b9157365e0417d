"""Tasks that need no practice for a while: what is solved is asked less and less often.

A task whose every answer passed teaches nothing, and would most likely teach nothing in the next pass over the data
either. It sits out one pass; when it then is right again, two, four, and so on up to `most`. A single miss, and it is
in every pass again.
"""

from freerun.core import DropReason
from freerun.core.groups import GroupEvent
from freerun.core.state import SitOut

_COUNT = (None, DropReason.NO_SIGNAL, DropReason.TOO_STALE)
"""Groups that were trained on, or dropped for one of these reasons, were judged as a whole."""


class SolvedTasks:
    """Listens to the book of groups: what counts is how good a group was when it ended. `most` 0: no task sits out."""

    def __init__(self, most: int = 0, pass_reward: float = 1.0, resting: dict[str, SitOut] | None = None) -> None:
        self._most = most
        self._pass_reward = pass_reward
        self._resting = dict(resting or {})

    def sits_out(self, task: str, epoch: int) -> bool:
        found = self._resting.get(task)
        return found is not None and epoch < found.until

    def note(self, event: GroupEvent) -> None:
        """A group that ended without being judged as a whole changes nothing."""
        if not (event.stage.is_end and event.rewards and event.reason in _COUNT):
            return
        before = self._resting.pop(event.task, None)
        passes = min(2 * before.passes if before else 1, self._most)
        if passes and min(event.rewards) >= self._pass_reward:
            self._resting[event.task] = SitOut(passes, event.position.epoch + 1 + passes)

    def __len__(self) -> int:
        """Tasks that were solved when they were last asked."""
        return len(self._resting)

    @property
    def resting(self) -> dict[str, SitOut]:
        """For a checkpoint: also those that may be asked again and have not been."""
        return dict(self._resting)
