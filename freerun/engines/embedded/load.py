"""The engine's model, on a GPU if there is one, in the type that the configuration asks for."""

from pathlib import Path

import torch

from freerun.engines.config import EngineConfig
from freerun.models.checkpoint import load_decoder
from freerun.models.decoder import Decoder


def load_for_engine(folder: Path, config: EngineConfig) -> Decoder:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    natural = "bfloat16" if device == "cuda" else "float32"
    return load_decoder(folder, getattr(torch, natural if config.dtype == "auto" else config.dtype), device)
