"""The weights of an engine, of which each new version takes the place: in the memory that the one before had, so that
whatever was captured with them stays valid."""

from collections.abc import Mapping

import torch
from torch import Tensor

from freerun.core import EngineError, Version
from freerun.models.adapter import changing
from freerun.models.decoder import Decoder
from freerun.models.fp8 import fp8_layers


class HeldWeights:
    def __init__(self, decoder: Decoder) -> None:
        self._copied: dict[str, Tensor] = {name: parameter.data for name, parameter in changing(decoder).items()}
        self._rounded = {f"{name}.weight": layer for name, layer in fp8_layers(decoder)}
        """What arrives wide, and is of 8 bits here."""
        for name in self._rounded:
            del self._copied[name]
        self.names = self._copied.keys() | self._rounded.keys()
        """The tensors that a version brings."""
        wide = sum(layer.weight.numel() for layer in self._rounded.values()) * decoder.embed.weight.element_size()
        self.version_bytes = wide + sum(tensor.nbytes for tensor in self._copied.values())
        """One version, as it arrives."""

    def check(self, version: Version, tensors: Mapping[str, Tensor]) -> None:
        if odd := sorted(self.names ^ tensors.keys()):
            raise EngineError(f"version {version} is not of this model: {len(odd)} tensors differ, such as {odd[0]}")

    @torch.no_grad()
    def take(self, tensors: Mapping[str, Tensor]) -> None:
        torch._foreach_copy_(list(self._copied.values()), [tensors[name] for name in self._copied])
        for name, layer in self._rounded.items():
            layer.take(tensors[name])
