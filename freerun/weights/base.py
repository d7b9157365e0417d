"""How a version of the weights changes hands: a publisher (trainer side), a subscriber (engine side), and the handle
that travels between them through the controller, which never looks inside.

With several ranks each publishes the tensors that it kept, its part of the version: a handle of its own. The version's
handle names them all (`of_parts`).

Knows names and tensors; knows neither trainers nor engines. Importable without torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

from freerun.core import Version
from freerun.core.reports import WeightsHandle

if TYPE_CHECKING:
    from torch import Tensor

Tensors: TypeAlias = "Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]"
"""By name, or one after another: where each is gathered when its turn comes, one is in memory at a time."""

PARTS = "parts"
"""What the handle of a version says that several ranks published, instead of a way: each part has its own."""


class Publisher(Protocol):
    def publish(self, version: Version, tensors: Tensors) -> WeightsHandle:
        """Make a version available, or with several ranks this one's part of it. Returns only when that is complete;
        versions only go up."""
        ...

    def announce(self, handle: WeightsHandle) -> None:
        """Every rank calls it with the handle of the version, once all its parts are published."""
        return


class Subscriber(Protocol):
    received_bytes: int = 0
    """How many came over the network with the last fetch."""

    def fetch(self, handle: WeightsHandle) -> dict[str, Tensor]:
        """Exactly that version, or WeightsError. Once `confirm` has agreed, it was complete; it stays until the next
        call."""
        ...

    def confirm(self, handle: WeightsHandle) -> None:
        """Call it when what was fetched has been copied to its place. Raises WeightsError if another version has been
        written over it meanwhile, which can happen where `fetch` returns the publisher's own memory."""
        return


def each(tensors: Tensors) -> Iterable[tuple[str, Tensor]]:
    return tensors.items() if isinstance(tensors, Mapping) else tensors


def of_parts(parts: Sequence[WeightsHandle]) -> WeightsHandle:
    """The handle of the version that those make up. Where the first names a way of its own to get its parts, it is the
    way to get them all."""
    first, *others = parts
    if first.parts:
        return replace(first, parts=[*first.parts, *others])
    return WeightsHandle(PARTS, first.version, "", parts=list(parts)) if others else first
