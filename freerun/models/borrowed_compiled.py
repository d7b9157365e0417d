"""Layers of transformers' code, compiled: once for all of a kind, and for all lengths.

What is compiled is what lies around a layer's attention, its experts and their router: those are ours, or have kernels
of their own, or do something beside computing, and are called as they are. Where an architecture does not compile, its
layers go on as they are written, and a line says so.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from freerun.models.borrowed_routers import routers_of


def compile_layers(layers: Sequence[nn.Module], notes: list[str], backend: Any = "inductor") -> None:
    """Compile them in place. What goes wrong later is written to the notes."""
    kinds: dict[type[nn.Module], _Compiled] = {}
    for layer in layers:
        for part in {*routers_of(layer), *filter(_has_experts, layer.modules())}:
            part.forward = left_out(part.forward)
        kind = type(layer)
        if kind not in kinds:
            kinds[kind] = _Compiled(kind, notes, backend)
        layer.forward = partial(kinds[kind], layer)


def left_out(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, called as it is where what calls it is compiled."""
    disable: Any = torch.compiler.disable
    same: Callable[..., Any] = disable(function)
    return same


def _has_experts(module: nn.Module) -> bool:
    """Whether it holds matrices one upon the other."""
    return any(parameter.dim() == 3 for parameter in module.parameters(recurse=False))


class _Compiled:
    """The forward pass of all layers of a kind."""

    def __init__(self, kind: type[nn.Module], notes: list[str], backend: Any) -> None:
        self._kind, self._notes = kind, notes
        self._forward: Callable[..., Any] = torch.compile(kind.forward, dynamic=True, backend=backend)

    def __call__(self, layer: nn.Module, *given: Any, **more: Any) -> Any:
        from torch._dynamo.exc import TorchDynamoException  # loaded by now

        try:
            return self._forward(layer, *given, **more)
        except TorchDynamoException as error:
            if self._forward is self._kind.forward:
                raise
            said = " ".join(str(error).split())[:160]
            self._notes.append(f"{self._kind.__name__} is not compiled, and so slower: {type(error).__name__}: {said}")
            self._forward = self._kind.forward
        return self._forward(layer, *given, **more)
