"""The engine's model, on a GPU if there is one, in the type that the configuration asks for."""

from pathlib import Path

import torch

from freerun.core import ConfigError
from freerun.engines.config import EngineConfig
from freerun.machine.device import choose_device
from freerun.models.adapter import adapt_to_compute
from freerun.models.checkpoint import Common, load_decoder
from freerun.models.decoder import Decoder
from freerun.models.fp8 import round_layers
from freerun.models.shape import AdapterShape, Backend


def load_for_engine(
    folder: Path,
    config: EngineConfig,
    backend: Backend = "auto",
    adapter: AdapterShape | None = None,
    common: Common | None = None,
) -> Decoder:
    """With an `adapter`, every new version is one, and changes the weights in no way: they may be `common` with other
    processes. It computes nothing until the first comes."""
    config = config.on(choose_device())
    if adapter and config.weights == "fp8":
        raise ConfigError("engine.weights=fp8 and train.lora do not go together: unset one of them")
    decoder = load_decoder(
        folder, getattr(torch, config.dtype), config.device, backend, common, adapter.bits if adapter else 16
    )
    if adapter:
        adapt_to_compute(decoder, adapter)
    elif config.weights == "fp8":
        round_layers(decoder)
    return decoder
