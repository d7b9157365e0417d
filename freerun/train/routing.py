"""Which experts tokens go through while a mixture of them learns: those that they went through in the engine.

Engine and trainer round differently, and a router that is undecided between two experts then takes one here and the
other there: what follows differs by far more than rounding. And weights that moved on choose others. So the engine's
choice is taken as it was (Ma et al. 2025, "Stabilizing MoE reinforcement learning by aligning training and inference
routers"), and only what each expert counts comes from the present router, which learns by that. Where the choice is not
known (an answer's last token, engines that do not tell) the router chooses.

Shapes: T tokens, L layers that have experts, E experts of each, k of them for a token; U tokens whose choice is not
known, C at which it is compared.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from freerun.models.decoder import likeliest
from freerun.models.routes import RouteLayout

_COMPARED = 1024
"""Tokens of a pass, at most, at which the router is asked what it would have chosen."""


class Routed(NamedTuple):
    """What is shown of the routing in one pass."""

    load_LE: Tensor
    """How many tokens went through each expert."""
    replayed: Tensor
    """How many choices were the engine's, of all tokens in all layers."""
    compared: Tensor
    """How many choices of the engine's were compared with what the router would choose."""
    different: Tensor
    """How many of those it would not."""


class Routing:
    """A `Choose`. `routes_T` are the engine's choices, as bytes."""

    def __init__(self, layout: RouteLayout, routes_T: Tensor | None, device: torch.device) -> None:
        self._layout = layout
        self._chosen_TLk: Tensor | None = None
        if routes_T is not None and routes_T.shape[1] == layout.width:
            self._chosen_TLk = self._numbers(routes_T)
            self._known_T = (self._chosen_TLk < layout.experts).flatten(1).all(1)
            self._unknown_U = (~self._known_T).nonzero().squeeze(1)  # asks the device, once a pass
        self._load_LE = torch.zeros(layout.layers, layout.experts, device=device)
        self._figures_L3 = torch.zeros(layout.layers, 3, device=device)

    def __call__(self, layer: int, scores_TE: Tensor, k: int) -> Tensor:
        if self._chosen_TLk is None:
            chosen_Tk = likeliest(layer, scores_TE, k)
        else:
            chosen_Tk = self._replayed(layer, scores_TE, k, self._chosen_TLk[:, layer].long())
        self._load_LE[layer] = torch.histc(chosen_Tk.float(), self._layout.experts, 0, self._layout.experts)
        return chosen_Tk

    def _replayed(self, layer: int, scores_TE: Tensor, k: int, theirs_Tk: Tensor) -> Tensor:
        if len(self._unknown_U):
            theirs_Tk[self._unknown_U] = likeliest(layer, scores_TE[self._unknown_U], k)
        live_Ck, known_C1 = likeliest(layer, scores_TE[:_COMPARED], k), self._known_T[:_COMPARED, None]
        same_Ck = (theirs_Tk[:_COMPARED, :, None] == live_Ck[:, None, :]).any(-1)
        different = (~same_Ck & known_C1).sum()
        self._figures_L3[layer] = torch.stack([self._known_T.sum() * k, known_C1.sum() * k, different]).float()
        return theirs_Tk

    def _numbers(self, routes_T: Tensor) -> Tensor:
        """T × L × k."""
        size = len(routes_T), self._layout.layers, self._layout.per_token
        if self._layout.experts < 256:
            return routes_T.view(size)
        pairs = routes_T.view(*size, 2).int()
        return pairs[..., 0] + 256 * pairs[..., 1]

    @property
    def routed(self) -> Routed:
        return Routed(self._load_LE, *self._figures_L3.sum(0))
