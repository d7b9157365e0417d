"""Something that may be lost while others wait for it: another machine, or a process there.

A connection whose cable is cut stays silent for minutes. Whoever learns of it by another way says so here, and all who
wait are told at once.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from freerun.core.errors import FreerunError


class Losable:
    """Waits that end when it is lost: `async with losable.unless_lost(): await ...` then raises the error it was made
    for, and so does every later one. Nothing may be yielded to a caller from within the block."""

    def __init__(self, error: type[FreerunError]) -> None:
        self._error = error
        self._why: str | None = None
        self._waits: set[asyncio.Timeout] = set()

    @property
    def is_lost(self) -> bool:
        return self._why is not None

    def lose(self, why: str) -> None:
        """The first reason counts."""
        if self._why is None:
            self._why = why
            for wait in self._waits:
                wait.reschedule(asyncio.get_running_loop().time())

    @asynccontextmanager
    async def unless_lost(self) -> AsyncIterator[None]:
        if self._why is not None:
            raise self._error(self._why)
        wait = asyncio.timeout(None)
        try:
            async with wait:
                self._waits.add(wait)
                try:
                    yield
                finally:
                    self._waits.discard(wait)
        except TimeoutError:
            if wait.expired() and self._why is not None:
                raise self._error(self._why) from None
            raise
