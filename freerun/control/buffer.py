"""The trainer's side of the book: which judged groups a step takes, and how many more should be on their way.

What may be taken, and when, is the bound's decision; how far to look ahead is the limit's.

Reads the book of groups, and moves what is taken to `training`. `take` waits until the bound can choose a full batch,
and is unblocked by a group that arrives or is dropped, and by `end`; `room` waits while enough groups are on their way,
and is unblocked by `take` and by a group that is dropped.
"""

import asyncio

from freerun.control.bound import Bound, Selection
from freerun.control.groups import GroupBook
from freerun.control.lookahead import LookaheadLimit
from freerun.core import Version


class Buffer:
    def __init__(self, book: GroupBook, bound: Bound, lookahead: LookaheadLimit) -> None:
        self._book = book
        self._bound = bound
        self._lookahead = lookahead
        self._taken_s: float | None = None
        self._ended = False

    def end(self) -> None:
        """No further group will be dealt: the last batch may be short."""
        self._ended = True
        self._book.notify()

    async def room(self) -> None:
        """Wait while enough groups are on their way: another one would only grow old."""
        await self._book.until(lambda: not self._lookahead.holds(self._book.num_waiting))

    async def take(self, count: int, version: Version) -> Selection:
        """What to train on at `version`. Nothing to take and nothing to drop: the data has ended."""
        asked_s = asyncio.get_running_loop().time()
        selection = Selection()

        def chosen() -> bool:
            nonlocal selection
            over = self._ended and not self._book.num_running
            wanted = min(count, self._book.num_ready) if over else count
            if over and not wanted:
                return True
            selection = self._bound.select(self._book.ready, self._book.running, version, wanted)
            return bool(selection.take or selection.drop)

        await self._book.until(chosen)
        for group in selection.take:
            self._book.training(group.id)
        if selection.take:
            self._report(asked_s)
        return selection

    def _report(self, asked_s: float) -> None:
        """Tell the look-ahead how long the trainer has waited for its batch."""
        now_s = asyncio.get_running_loop().time()
        if self._taken_s is not None:
            self._lookahead.taken(now_s - asked_s, now_s - self._taken_s, self._book.num_ready)
        self._taken_s = now_s
