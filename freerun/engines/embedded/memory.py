"""What an engine needs of a GPU's memory, and how many tokens its cache may hold, before anything is allocated."""

from typing import TYPE_CHECKING

from freerun.core import ConfigError
from freerun.engines.config import TUNING, EngineConfig, Tuning
from freerun.models.shape import Shape

if TYPE_CHECKING:
    from freerun.models.decoder import Decoder

_ON_A_CPU = 65_536
_SPARE = 2**30
"""For what the allocator and the kernels keep to themselves."""


def bytes_per_token(shape: Shape, size: int) -> int:
    """Of the cache: a key and a value in every layer, in numbers of `size` bytes."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * size


def working_bytes(shape: Shape, size: int, config: EngineConfig, tuning: Tuning = TUNING) -> int:
    """Beside weights and cache: the next version while it is fetched, the widest activations of a step, and the logits
    of all rows, twice."""
    width = 3 * shape.ffn + 4 * shape.hidden + 2 * (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    logits = 2 * config.max_running * shape.vocab_size * 4
    return shape.num_parameters * size + tuning.tokens_in_a_step(on_gpu=True) * width * size + logits + _SPARE


def cache_tokens(decoder: "Decoder", config: EngineConfig, tuning: Tuning = TUNING) -> int:
    """What was asked for, if it fits; else, on a GPU, what its share of the memory leaves beside weights and work."""
    if not decoder.embed.weight.is_cuda:
        return config.cache_tokens or _ON_A_CPU
    from torch import cuda

    shape, size = decoder.shape, decoder.embed.weight.element_size()
    free, total = cuda.mem_get_info()
    ours = cuda.memory_reserved()  # the weights; what others hold is not in our share, but not free either
    budget = min(int(total * config.share) - ours, free) - working_bytes(shape, size, config, tuning)
    most = budget // bytes_per_token(shape, size)
    wanted = config.cache_tokens or most
    if wanted > most or most < config.max_running:
        raise ConfigError(
            f"the GPU has room for a cache of {max(most, 0):,} tokens beside weights and work ({free / 2**30:.1f} of "
            f"{total / 2**30:.1f} GiB free, engine.memory_share={config.share:.2g}); "
            + (f"engine.cache_tokens={wanted:,} is too many" if wanted > most else "choose a smaller model")
        )
    return wanted
