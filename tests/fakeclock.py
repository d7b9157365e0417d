"""An event loop whose clock jumps to the next timer instead of waiting for it: hours of waiting in milliseconds."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Never blocks: the time it was asked to wait for passes at once, on the loop's own clock."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("deadlock: everybody waits and no timer is set")
        self.now_s += max(timeout, 0.0)
        return super().select(0)


class FakeClockLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


def run_fast(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=FakeClockLoop) as runner:
        return runner.run(work)
