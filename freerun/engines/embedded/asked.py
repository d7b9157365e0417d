"""What is asked of the engine's thread, and what comes back, piece by piece."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from freerun.core import FinishReason, Version
from freerun.engines.base import Sampling


@dataclass(slots=True, frozen=True)
class Ask:
    """n answers to one prompt."""

    id: str
    prompt: list[int]
    sampling: Sampling
    n: int = 1


@dataclass(slots=True)
class Piece:
    """What an answer gained: all of it, when it ended, or, followed, what the last step added."""

    id: str
    index: int
    tokens: list[int]
    logprobs: list[float]
    versions: list[Version]
    finish: FinishReason | None
    """None: there is more to come."""


class Asked:
    """Answers on their way. Iterate over it, piece by piece, or take what has come `together`; `close` cancels what has
    not come yet, and must be called."""

    def __init__(self, answers: int, cancel: Callable[[], None]) -> None:
        self._left = answers
        self._cancel = cancel
        self.pieces: asyncio.Queue[Piece] = asyncio.Queue()

    def __aiter__(self) -> "Asked":
        return self

    async def __anext__(self) -> Piece:
        if not self._left:
            raise StopAsyncIteration
        piece = await self.pieces.get()
        self._left -= piece.finish is not None
        return piece

    async def together(self) -> list[Piece]:
        """All that has come, and at least one piece: what ended in one step of the engine. Empty at the end."""
        pieces = [await anext(self)] if self._left else []
        while pieces and not self.pieces.empty():
            pieces.append(await anext(self))
        return pieces

    def close(self) -> None:
        self._cancel()
