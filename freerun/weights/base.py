"""How a version of the weights changes hands: a publisher (trainer side), a subscriber (engine side), and the handle
that travels between them through the controller, which never looks inside.

Knows names and tensors; knows neither trainers nor engines. Importable without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from freerun.core import Version
from freerun.core.reports import WeightsHandle

if TYPE_CHECKING:
    from torch import Tensor


class Publisher(Protocol):
    def publish(self, version: Version, tensors: Mapping[str, Tensor]) -> WeightsHandle:
        """Make a version available. Returns only when it is complete; versions only go up."""
        ...


class Subscriber(Protocol):
    def fetch(self, handle: WeightsHandle) -> dict[str, Tensor]:
        """Exactly that version, or WeightsError. Once `confirm` has agreed, it was complete; it stays until the next
        call."""
        ...

    def confirm(self, handle: WeightsHandle) -> None:
        """Call it when what was fetched has been copied to its place. Raises WeightsError if another version has been
        written over it meanwhile, which can happen where `fetch` returns the publisher's own memory."""
        return
