"""How positions turn queries and keys: each pair of numbers at a speed of its own; and what the known scalings, which
stretch the positions that a model was trained on, make of these speeds."""

import math

import torch
from torch import Tensor

from freerun.models.shape import Shape, rope_type

_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def inverse_frequencies(shape: Shape) -> Tensor:
    """By how much each pair turns from one position to the next."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32, device="cpu") / shape.head_dim
    frequencies: Tensor = 1.0 / shape.rope_theta**exponents
    scaling = shape.rope_scaling
    match rope_type(scaling):
        case "linear":
            return frequencies / float(scaling["factor"])
        case "llama3":
            return _llama3(frequencies, **{key: float(scaling[key]) for key in _LLAMA3})
        case "yarn":
            return _yarn(frequencies, shape)
    return frequencies


def strength(shape: Shape) -> float:
    """What cosines and sines are multiplied by: YaRN makes scores larger, the more positions are stretched."""
    scaling = shape.rope_scaling
    if rope_type(scaling) != "yarn":
        return 1.0
    if (given := scaling.get("attention_factor")) is not None:
        return float(given)
    factor, mscale, all_dims = (float(scaling.get(key) or 0) for key in ("factor", "mscale", "mscale_all_dim"))
    if mscale and all_dims:
        return _growth(factor, mscale) / _growth(factor, all_dims)
    return _growth(factor, 1.0)


def _growth(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _llama3(
    frequencies: Tensor,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_max_position_embeddings: float,
) -> Tensor:
    """Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, those between blended."""
    turns = original_max_position_embeddings * frequencies / (2 * math.pi)
    blend = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0)
    return blend * frequencies + (1 - blend) * frequencies / factor


def _yarn(frequencies: Tensor, shape: Shape) -> Tensor:
    """Peng et al. 2023: pairs that turn often over the original positions keep their speed, those that hardly turn once
    are stretched, and those between are blended by their place."""
    scaling = shape.rope_scaling
    original = float(scaling.get("original_max_position_embeddings") or shape.max_positions)
    low = _pair_of(float(scaling.get("beta_fast") or 32), original, shape)
    high = _pair_of(float(scaling.get("beta_slow") or 1), original, shape)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, shape.head_dim - 1)
    places = torch.arange(len(frequencies), dtype=torch.float32, device="cpu")
    stretched = ((places - low) / (high - low or 0.001)).clamp(0.0, 1.0)
    blended: Tensor = frequencies / float(scaling["factor"]) * stretched + frequencies * (1 - stretched)
    return blended


def _pair_of(turns: float, positions: float, shape: Shape) -> float:
    """Which pair turns so often over so many positions; between two, as a rule."""
    return shape.head_dim * math.log(positions / (turns * 2 * math.pi)) / (2 * math.log(shape.rope_theta))
