"""Judged groups waiting to be trained on, and the groups still on their way to it.

Invariant: a group is in exactly one place: expected (admitted, running or being judged), ready, or gone (taken by one
step, or dropped). Each is taken once. What may be taken, and when, is the bound's decision.

Consumes `expect`, `put`, `forget`; produces selections, oldest first; `take` waits until the bound can choose a full
batch, and is unblocked by a group that arrives or fails, and by `end`; `room` waits while a whole batch is in stock,
and is unblocked by `take`.
"""

import asyncio

from freerun.control.bound import Bound, Selection
from freerun.core import Group, Version


class Buffer:
    def __init__(self, bound: Bound) -> None:
        self._bound = bound
        self._expected: dict[int, Version] = {}
        self._ready: dict[int, Group] = {}
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
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

    def end(self) -> None:
        """No further group will be expected: the last batch may be short."""
        self._ended = True
        self._changed.set()

    async def room(self, count: int) -> None:
        """Wait while `count` groups are ready: the trainer's next batch is in stock, and more would only grow old."""
        while len(self._ready) >= count:
            self._taken.clear()
            await self._taken.wait()

    async def take(self, count: int, version: Version) -> Selection:
        """What to train on at `version`. Nothing to take and nothing to drop: the data has ended."""
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
                self._taken.set()
                return selection
            await self._changed.wait()
