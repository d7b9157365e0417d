"""Which experts a token went through, as bytes: an engine writes them, the trainer reads them, and nobody between them
need know what they say.

A token's row has, for each layer with experts, the numbers of those that it went through: a byte each, or two where
there are more experts than a byte counts. All bits set stand for experts that nobody knows: the last token of an answer
has not been read by anybody yet. No torch.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from freerun.models.shape import Shape

Routes = NDArray[np.uint8]
"""A row of bytes for each token."""


@dataclass(frozen=True)
class RouteLayout:
    layers: int
    """Those that have experts."""
    per_token: int
    experts: int
    places: tuple[int, ...] = ()
    """Which of the model's layers they are, for those who count all."""

    @classmethod
    def of(cls, shape: Shape) -> "RouteLayout | None":
        experts = shape.experts
        return cls(len(experts.layers), experts.per_token, experts.count, experts.layers) if experts else None

    @property
    def kind(self) -> np.dtype[np.integer]:
        return np.dtype(np.uint8 if self.experts < 256 else np.uint16)

    @property
    def width(self) -> int:
        """Bytes of a token."""
        return self.layers * self.per_token * self.kind.itemsize

    def encoded(self, chosen_TLk: NDArray[np.integer]) -> Routes:
        """From the numbers of experts, of layers that have such or of all the model's."""
        if chosen_TLk.shape[1] > self.layers and self.places and max(self.places) < chosen_TLk.shape[1]:
            chosen_TLk = chosen_TLk[:, self.places]
        tokens, layers, per_token = chosen_TLk.shape
        if (layers, per_token) != (self.layers, self.per_token):
            raise ValueError(
                f"experts came for {layers} layers and {per_token} a token, and the model has {self.layers} layers of "
                f"{self.per_token} a token"
            )
        return np.ascontiguousarray(chosen_TLk, self.kind).reshape(tokens, -1).view(np.uint8)

    def decoded(self, routes: Routes) -> NDArray[np.integer]:
        """T × layers × k; the largest number of the type stands for what is not known."""
        chosen: NDArray[np.integer] = np.ascontiguousarray(routes).view(self.kind)
        return chosen.reshape(len(routes), self.layers, self.per_token)

    def unknown(self, tokens: int) -> Routes:
        return np.full((tokens, self.width), 255, np.uint8)
