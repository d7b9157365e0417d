"""Judged groups waiting to be trained on, and the groups still on their way to it.

Invariant: a group is in exactly one place: expected (admitted, running or being judged), ready, or gone (taken by one
step, or dropped). Each is taken once. What may be taken, and when, is the bound's decision.

Consumes `expect`, `put`, `forget`; produces selections, oldest first; `take` waits until the bound can choose a full
batch, and is unblocked by a group that arrives or fails, and by `end`; `room` waits while the lookahead is full, and is
unblocked by `take` and by a group that fails.
"""

import asyncio

from freerun.control.bound import Bound, Selection
from freerun.control.lookahead import LookaheadLimit
from freerun.core import Group, Version


class Buffer:
    def __init__(self, bound: Bound, lookahead: LookaheadLimit) -> None:
        self._bound = bound
        self._lookahead = lookahead
        self._expected: dict[int, Version] = {}
        self._ready: dict[int, Group] = {}
        self._changed = asyncio.Event()
        self._fewer = asyncio.Event()
        self._taken_s: float | None = None
        self._ended = False

    def __len__(self) -> int:
        return len(self._ready)

    def expect(self, group: int, version: Version) -> None:
        """The group was admitted at that version and will be `put` or forgotten."""
        self._expected[group] = version

    def put(self, group: Group) -> None:
        del self._expected[group.id]
        self._ready[group.id] = group
        self._changed.set()

    def forget(self, group: int) -> None:
        """The group was dropped on its way."""
        del self._expected[group]
        self._changed.set()
        self._fewer.set()

    def end(self) -> None:
        """No further group will be expected: the last batch may be short."""
        self._ended = True
        self._changed.set()

    async def room(self) -> None:
        """Wait while the lookahead is full: what were admitted now would only grow old."""
        while self._lookahead.holds(len(self._expected) + len(self._ready)):
            self._fewer.clear()
            await self._fewer.wait()

    async def take(self, count: int, version: Version) -> Selection:
        """What to train on at `version`. Nothing to take and nothing to drop: the data has ended."""
        asked_s = asyncio.get_running_loop().time()
        while True:
            self._changed.clear()
            over = self._ended and not self._expected
            wanted = min(count, len(self._ready)) if over else count
            if over and not wanted:
                return Selection()
            selection = self._bound.select(list(self._ready.values()), self._expected.values(), version, wanted)
            if selection.take or selection.drop:
                for group in selection.take + selection.drop:
                    del self._ready[group.id]
                if selection.take:
                    self._tell_lookahead(asked_s)
                self._fewer.set()
                return selection
            await self._changed.wait()

    def _tell_lookahead(self, asked_s: float) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._taken_s is not None:
            self._lookahead.taken(now_s - asked_s, now_s - self._taken_s, len(self._ready))
        self._taken_s = now_s
