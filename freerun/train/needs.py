"""What a trainer needs of a GPU's memory, worked out before anything is allocated. Importable without torch."""

from math import lcm

from freerun.core import ConfigError
from freerun.models.shape import AdapterShape, Shape
from freerun.train.config import ResolvedTrainConfig

_SPARE = 2**30
_LOGITS, _LOGITS_OF_FROZEN = 2**28, 2**26
"""Held at a time, at most."""
MOMENT_BLOCK = 256
"""Numbers of a moment that share a scale, where moments are of 8 bits: `moments.py`."""
_MOMENTS = {"32bit": 8.0, "8bit": 2 * (1 + 4 / MOMENT_BLOCK), "offload": 0.0}
_PIECE = 2**26
"""Bytes of each piece of the machine's memory that tensors wait in: `models/aside.py`."""
PASS_TOKENS = 32_768
"""Tokens in a pass from which on more gain nothing."""


def refuse_uneven_heads(shape: Shape, context: int) -> None:
    """Ranks that share a sequence share the heads of its attention out among them."""
    if shape.heads % context:
        fitting = ", ".join(str(size) for size in range(1, shape.heads + 1) if shape.heads % size == 0)
        raise ConfigError(
            f"train.context_parallel={context} does not divide the model's {shape.heads} heads: set one of {fitting}"
        )


def standing_bytes(shape: Shape, config: ResolvedTrainConfig, machines: int = 1, spare: int = _SPARE) -> int:
    """What one rank holds between two passes: weights to compute with and to learn, gradient, moments. Below an adapter
    weights are there in the type that is computed in, also for a reference. Ranks are on so many machines; `spare` is
    what the allocator and the kernels keep."""
    size, adapter = _size(config), AdapterShape(config.lora.rank, config.lora.effective_alpha, config.lora.bits)
    copy, learned = (2 if size == 2 else 0), 4 + 4 + moment_bytes(config)
    learns = shape.num_parameters
    weights = 0.0
    if config.lora.rank:
        learns = adapter.num_parameters(shape)
        alone = config.ranks == 1 and config.advantages != "gae"
        weights = adapter.base_bytes(shape, size) if alone else (copy + 4) * shape.num_parameters
    weights += (copy + learned) * learns
    weights += (copy + learned) * shape.num_parameters if config.advantages == "gae" else 0
    weights += size * shape.num_parameters if config.kl.coef and not (config.lora.rank and config.ranks == 1) else 0
    most = _LOGITS_OF_FROZEN if config.lora.rank and config.advantages != "gae" else _LOGITS
    logits = min(most, PASS_TOKENS * shape.vocab_size)  # a chunk, its gradient, the matrix product's workspace
    return int(weights) // _sharing(config, machines) + 3 * 4 * logits + adapter.widened_bytes(shape, size) + spare


def moment_bytes(config: ResolvedTrainConfig) -> float:
    """What a weight's two moments take where the weight is."""
    return _MOMENTS[config.optimizer_state]


def offloaded_bytes(shape: Shape, config: ResolvedTrainConfig, machines: int = 1) -> int:
    """What one rank holds in the machine's memory: the optimizer's moments, and what came into layers, in float32,
    where they are offloaded."""
    inputs = shape.layers * (4 * shape.hidden * PASS_TOKENS + _PIECE) if config.recompute == "offload" else 0
    if config.optimizer_state != "offload" or config.lora.rank:
        return inputs
    learning = 2 if config.advantages == "gae" else 1
    return inputs + 8 * learning * shape.num_parameters // _sharing(config, machines)


def _sharing(config: ResolvedTrainConfig, machines: int) -> int:
    """How many ranks share one copy of the weights."""
    return config.ranks // machines if config.shard == "machine" else config.ranks


def bytes_per_token(shape: Shape, config: ResolvedTrainConfig) -> int:
    """What a token of a forward pass leaves for the backward pass: figures of a layer, fitted to what was measured.
    Ranks that share each sequence hold a part of it each; key/value heads that several of them need are there more
    often."""
    ranks = config.context_parallel
    queries, keys = shape.heads * shape.head_dim, lcm(shape.kv_heads, ranks) * shape.head_dim
    at_once = 0.0
    if shape.experts:  # what goes into and comes out of one layer's experts, and the gradients of that
        at_once = 3.0 * shape.experts.per_token * (shape.hidden + shape.experts.ffn)
    if config.recompute in ("all", "offload"):  # what came into layers; all of one layer with its gradients
        a_layer = 6 * shape.hidden + 3 * queries + 3 * keys + 3 * shape.token_ffn
        inputs = 0 if config.recompute == "offload" else 4 * shape.hidden * shape.layers
        return int((1.1 * inputs + 3 * _size(config) * (a_layer + at_once)) / ranks)
    if config.recompute:
        kept = 1.3 * (4 * shape.hidden + 2 * queries + 2 * keys)
    else:
        kept = 1.1 * (6 * shape.hidden + 3 * queries + 3 * keys + 3 * shape.token_ffn)
    return int(_size(config) * (kept * shape.layers + at_once) / ranks)


def _size(config: ResolvedTrainConfig) -> int:
    """Bytes of a number that is computed with."""
    return 2 if config.low_precision else 4
