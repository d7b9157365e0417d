"""The engine's model, on a GPU if there is one, in the type that the configuration asks for."""

from pathlib import Path

import torch

from freerun.engines.config import EngineConfig
from freerun.machine.device import choose_device
from freerun.models.checkpoint import load_decoder
from freerun.models.decoder import Decoder
from freerun.models.shape import Backend


def load_for_engine(folder: Path, config: EngineConfig, backend: Backend = "auto") -> Decoder:
    config = config.on(choose_device())
    return load_decoder(folder, getattr(torch, config.dtype), config.device, backend)
