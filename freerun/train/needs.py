"""What a trainer needs of a GPU's memory, worked out before anything is allocated. Importable without torch."""

from freerun.models.shape import Shape
from freerun.train.config import ResolvedTrainConfig

_SPARE = 2**30
_LOGITS = 2**28
"""Held at a time, at most."""
PASS_TOKENS = 32_768
"""Tokens in a pass from which on more gain nothing."""


def standing_bytes(shape: Shape, config: ResolvedTrainConfig, publishes: bool) -> int:
    """What one rank holds between two passes: weights to compute with and to learn, gradient, moments. A rank that
    `publishes` holds two more versions for the engines."""
    size = _size(config)
    copy, learned = (2 if size == 2 else 0), 4 + 4 + 8
    weights = copy + learned if not config.lora.rank else copy + 4  # an adapter is small, but the model is loaded wide
    weights += copy + learned if config.advantages == "gae" else 0
    weights += size if config.kl.coef else 0
    logits = min(_LOGITS, PASS_TOKENS * shape.vocab_size)  # a chunk, its gradient, the matrix product's workspace
    published = 2 * size * shape.num_parameters if publishes else 0
    return shape.num_parameters * weights // config.ranks + published + 3 * 4 * logits + _SPARE


def bytes_per_token(shape: Shape, config: ResolvedTrainConfig) -> int:
    """What a token of a forward pass leaves for the backward pass: figures of a layer, fitted to what was measured."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    if config.recompute:
        kept = 1.3 * (4 * shape.hidden + 2 * queries + 2 * keys)
    else:
        kept = 1.1 * (6 * shape.hidden + 3 * queries + 3 * keys + 3 * shape.ffn)
    return int(_size(config) * kept * shape.layers)


def _size(config: ResolvedTrainConfig) -> int:
    """Bytes of a number that is computed with."""
    return 2 if config.low_precision else 4
