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
        """Exactly that version, or WeightsError: never a part of one, once `confirm` has said so. It is there until the
        next."""
        ...

    def confirm(self, handle: WeightsHandle) -> None:
        """To be called when what was fetched has been copied to its place. WeightsError if it was another version by
        then: it may lie in the publisher's own memory. What `fetch` has copied and checked cannot be."""
        return
