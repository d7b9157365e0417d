"""Who waits for what, for how long: counted by cause, and said by name where it is longer than usual.

Consumes waits, as blocks that take their time (`of`) and as work that is awaited (`aloud`). Produces seconds by cause,
which observers are told, and a note for a wait that is much longer than those before it: once, and again whenever it
has doubled. After some seconds, what the controller does is the explanation.
"""

import asyncio
import statistics
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from freerun.core.groups import GroupEvent
from freerun.core.observer import Observer
from freerun.core.waits import WaitCause

T = TypeVar("T")

TRAINER, ADMISSION = "trainer", "admission"
_LOOK_S = 0.05
"""A wait is looked at so often at first, and then less and less, down to once a second."""
_MOMENT_S = 0.01
_LEAST_SHARE = 1 / 12
"""A wait shorter than this share of the patience is never said: 5 s of 60."""
_KNOWN = 5
"""So many waits say what is usual. Before that, the patience does."""


class Usual:
    """How long waits of one kind have been, and what is longer than that."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._recent_s: deque[float] = deque(maxlen=30)

    def add(self, waited_s: float) -> None:
        self._recent_s.append(waited_s)

    @property
    def median_s(self) -> float:
        return statistics.median(self._recent_s) if self._recent_s else 0.0

    @property
    def longer_s(self) -> float:
        """Five times the median, and twice what one in ten takes: the trainer may wait seldom, but then for long."""
        if len(self._recent_s) < _KNOWN:
            return self._patience_s
        often_s = sorted(self._recent_s)[int(len(self._recent_s) * 0.9)]
        return max(5 * self.median_s, 2 * often_s, self._patience_s * _LEAST_SHARE)


@dataclass(slots=True)
class _Going:
    cause: Callable[[], WaitCause]
    since_s: float
    """What came before is counted."""
    at_first: WaitCause
    """The cause then: what ended the wait has changed it since."""


class Waits:
    def __init__(self, observer: Observer, patience_s: float) -> None:
        self._observer, self._patience_s = observer, patience_s
        self._going: dict[str, _Going] = {}
        self._usual: dict[str, Usual] = {}

    def usual(self, kind: str) -> Usual:
        return self._usual.setdefault(kind, Usual(self._patience_s))

    @contextmanager
    def of(self, who: str, cause: WaitCause | Callable[[], WaitCause]) -> Iterator[None]:
        """The block is a wait: `cause` says what for, at any moment."""
        at = partial(WaitCause, cause) if isinstance(cause, WaitCause) else cause
        self._going[who] = _Going(at, _now_s(), at())
        try:
            yield
        finally:
            going = self._going.pop(who)
            if (passed_s := _now_s() - going.since_s) > 0:
                self._observer.waited(who, going.at_first, passed_s)

    def look(self) -> None:
        """Count what has passed until now."""
        for who in self._going:
            self._count(who)

    def changed(self, event: GroupEvent) -> None:
        """A group came to another stage, which may change the cause. What is too short to matter is left for later."""
        for who, going in self._going.items():
            if _now_s() - going.since_s >= _MOMENT_S:
                self._count(who)

    def cause(self, who: str) -> WaitCause | None:
        """What it waits for at the moment, if it does."""
        return self._going[who].cause() if who in self._going else None

    def _count(self, who: str) -> None:
        going, now_s = self._going[who], _now_s()
        if now_s > going.since_s:
            self._observer.waited(who, going.at_first, now_s - going.since_s)
        going.since_s, going.at_first = now_s, going.cause()

    async def aloud(self, kind: str, work: Coroutine[Any, Any, T], explain: Callable[[], str]) -> T:
        """Await `work`. A wait of some seconds is explained to those who watch; one that is longer than its kind's
        usual is explained aloud."""
        usual, task, begun_s = self.usual(kind), asyncio.ensure_future(work), _now_s()
        say_at_s, show_at_s, waited_s = usual.longer_s, self._patience_s * _LEAST_SHARE, 0.0
        try:
            while not (await asyncio.wait({task}, timeout=min(max(waited_s / 10, _LOOK_S), 1.0)))[0]:
                self.look()
                waited_s = _now_s() - begun_s
                if waited_s >= show_at_s:
                    self._observer.doing("controller", explain())
                if waited_s >= say_at_s:
                    self._observer.note(f"{explain()} (for {waited_s:.0f} s so far)")
                    say_at_s = 2 * waited_s
            return task.result()
        finally:
            task.cancel()
            usual.add(_now_s() - begun_s)
            if waited_s >= show_at_s:
                self._observer.doing("controller", "idle")


def _now_s() -> float:
    return asyncio.get_running_loop().time()
