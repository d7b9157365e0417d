"""The engine's model, on the device and in the type that the configuration asks for."""

from pathlib import Path

import torch

from freerun.core import ConfigError
from freerun.engines.config import EngineConfig
from freerun.models.checkpoint import load_decoder
from freerun.models.decoder import Decoder


def load_for_engine(folder: Path, config: EngineConfig) -> Decoder:
    there = torch.cuda.is_available()
    if config.device == "cuda" and not there:
        raise ConfigError("engine.device=cuda, but torch sees no GPU; set engine.device=auto, or see `freerun doctor`")
    device = "cuda" if there and config.device != "cpu" else "cpu"
    natural = "bfloat16" if device == "cuda" else "float32"
    return load_decoder(folder, getattr(torch, natural if config.dtype == "auto" else config.dtype), device)
