"""What is asked of an engine behind its server, and what comes back, piece by piece."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from freerun.core import EngineError, FinishReason, Version
from freerun.engines.base import Sampling
from freerun.engines.extras import Alternatives
from freerun.models.routes import Routes


@dataclass(slots=True, frozen=True)
class AnswerRequest:
    """n answers to one prompt."""

    id: str
    prompt: list[int]
    sampling: Sampling
    n: int = 1
    asked_s: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class AnswerPart:
    """What an answer gained: all of it, when it ended, or, followed, what the last step added."""

    id: str
    index: int
    tokens: list[int]
    logprobs: list[float]
    versions: list[Version]
    finish: FinishReason | None
    """None: there is more to come."""
    alternatives: list[Alternatives] = field(default_factory=list)
    cached: int = 0
    """Tokens of the prompt that were in the engine's cache: the same in every part of every answer to it."""
    routes: Routes | None = None
    """Which experts all tokens but the last went through, the prompt's included: with the last part."""


class PendingAnswers:
    """Answers on their way. Iterate over it, piece by piece, or take what has come `together`; `close` cancels what has
    not come yet, and must be called. All of it is the event loop's."""

    def __init__(self, asks: Sequence[AnswerRequest], cancel: Callable[[], None]) -> None:
        self._unfinished = {(ask.id, index) for ask in asks for index in range(ask.n)}
        self._left = len(self._unfinished)
        self._cancel = cancel
        self._pieces: asyncio.Queue[AnswerPart | EngineError] = asyncio.Queue()

    def __aiter__(self) -> "PendingAnswers":
        return self

    async def __anext__(self) -> AnswerPart:
        if not self._left:
            raise StopAsyncIteration
        piece = await self._pieces.get()
        if isinstance(piece, EngineError):
            raise piece
        self._left -= piece.finish is not None
        return piece

    async def together(self) -> list[AnswerPart]:
        """All that has come, and at least one piece: what ended in one step of the engine. Empty at the end."""
        pieces = [await anext(self)] if self._left else []
        while pieces and not self._pieces.empty():
            pieces.append(await anext(self))
        return pieces

    def put(self, piece: AnswerPart) -> None:
        """A piece has come; it is left out if its answer was over."""
        answer = piece.id, piece.index
        if answer in self._unfinished:
            self._pieces.put_nowait(piece)
            if piece.finish is not None:
                self._unfinished.remove(answer)

    def abort(self) -> None:
        """Every answer that has not ended ends with what has come of it."""
        for id, index in list(self._unfinished):
            self.put(AnswerPart(id, index, [], [], [], FinishReason.ABORT))

    def fail(self, error: EngineError) -> None:
        """Nothing more comes: raised for whoever waits, after what has come."""
        self._unfinished.clear()
        self._pieces.put_nowait(error)

    def close(self) -> None:
        self._cancel()
