"""An engine as the routes of its server see it. Importable without torch."""

from collections.abc import Sequence
from typing import Protocol

from freerun.core import Version
from freerun.core.reports import EngineStats, UpdateReport, WeightsHandle
from freerun.engines.config import OnUpdate
from freerun.engines.server.pending import AnswerRequest, PendingAnswers
from freerun.models.shape import Shape
from freerun.weights.base import Subscriber


class ServerEngine(Protocol):
    """Ours is a thread in the same process (`embedded/thread.py`); another maker's is a server of its own, which a
    front drives (`external/front.py`)."""

    @property
    def shape(self) -> Shape:
        """The shape of its model."""
        ...

    @property
    def version(self) -> Version: ...

    @property
    def paused(self) -> bool: ...

    async def ask(self, asks: Sequence[AnswerRequest], /) -> PendingAnswers:
        """Queue them all, or raise EngineError."""
        ...

    async def update_weights(
        self, handle: WeightsHandle, subscriber: Subscriber, on_update: OnUpdate | None = None, /
    ) -> UpdateReport:
        """Fetch that version and swap to it; `on_update` instead of the engine's own setting."""
        ...

    async def pause(self, abort: bool = False) -> None:
        """Returns when nothing is sampled any more. Requests stay; with `abort` they end where they are."""
        ...

    async def resume(self) -> None: ...

    async def stats(self) -> EngineStats: ...

    async def metrics(self) -> str:
        """In the text format that Prometheus reads."""
        ...
