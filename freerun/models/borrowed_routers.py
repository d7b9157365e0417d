"""Which experts tokens go through in mixtures whose code is transformers': its routers take the k likeliest by
`torch.topk`, and here they are given others instead.

A router is a module that transformers calls a top-k router. Whatever it does with its scores before and after, and to
whatever they are compared, stays its own: only which k it finds is decided here, and their scores are those that it
has, with their gradient. One that does not ask for k of its experts that way is left alone, and so is its model.
"""

import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from freerun.models.decoder import Choose, likeliest
from freerun.models.routes import RouteLayout

_NAME = "topkrouter"
_LAYER = re.compile(r"\.(\d+)\.")


class _Router(NamedTuple):
    module: nn.Module
    layer: int
    per_token: int
    experts: int


class Told(Protocol):
    """An object, and no function: it is copied with the model."""

    choose: Choose | None
    """Which experts to take, while the model computes."""


class _Asked(TorchFunctionMode):
    """While a router computes: it asks for its k likeliest experts, and is told which to take."""

    times: int

    def __init__(self, router: _Router, place: int, choose: Choose) -> None:
        super().__init__()
        self._router, self._place, self._choose = router, place, choose
        self.times = 0

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in (torch.topk, torch.Tensor.topk):
            scores, k = args[0], args[1] if len(args) > 1 else kwargs.get("k")
            if k == self._router.per_token and scores.dim() == 2 and scores.shape[1] == self._router.experts:
                self.times += 1
                with torch.no_grad():
                    chosen = self._choose(self._place, scores.detach(), k)
                return torch.return_types.topk((scores.gather(-1, chosen), chosen))
        return function(*args, **kwargs)


def follow_routers(model: nn.Module, hidden: int, told: Told) -> RouteLayout | None:
    """Have every router of the model take the experts that are `told` while it computes, where there are any. How it is
    written down which they are; None where that is not to be had."""
    routers = list(_routers(model))
    if not routers or any(router[2:] != routers[0][2:] or not _asks(router, hidden) for router in routers):
        return None
    for place, router in enumerate(routers):
        router.module.forward = partial(_routed, router, place, told, router.module.forward)
    layers = tuple(router.layer for router in routers)
    return RouteLayout(len(routers), routers[0].per_token, routers[0].experts, layers)


def routers_of(model: nn.Module) -> Iterator[nn.Module]:
    return (part for part in model.modules() if _is_router(part))


def _is_router(part: nn.Module) -> bool:
    return type(part).__name__.lower().endswith(_NAME)


def _routers(model: nn.Module) -> Iterator[_Router]:
    for name, module in model.named_modules():
        if _is_router(module) and (found := _LAYER.search(name)):
            per_token, experts = getattr(module, "top_k", None), getattr(module, "num_experts", None)
            if isinstance(per_token, int) and isinstance(experts, int):
                yield _Router(module, int(found[1]), per_token, experts)


@torch.no_grad()
def _asks(router: _Router, hidden: int) -> bool:
    """Whether it asks for k of its experts, once, for each token."""
    weight = next(router.module.parameters(), None)
    if weight is None:
        return False
    module, asked = router.module, _Asked(router, 0, likeliest)
    if weight.is_meta:  # its numbers are still to come, and do not matter
        module = deepcopy(module).to_empty(device="cpu")
        for tensor in module.state_dict().values():
            tensor.zero_()
    with asked:
        try:
            module(next(module.parameters()).new_zeros(2, hidden))
        except (TypeError, RuntimeError):
            return False
    return asked.times == 1


def _routed(
    router: _Router,
    place: int,
    told: Told,
    forward: Callable[..., Any],
    *given: Tensor,
    **more: Any,
) -> Any:
    if told.choose is None:
        return forward(*given, **more)
    with _Asked(router, place, told.choose):
        return forward(*given, **more)
