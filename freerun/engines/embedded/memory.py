"""How many tokens the cache may hold, worked out before anything is allocated."""

import torch

from freerun.core import ConfigError
from freerun.engines.config import EngineConfig
from freerun.models.decoder import Decoder

_ON_A_CPU = 65_536
_SPARE = 2**30
"""For what the allocator and the kernels keep to themselves."""


def bytes_per_token(decoder: Decoder) -> int:
    """Of the cache: a key and a value in every layer."""
    shape = decoder.shape
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * decoder.embed.weight.element_size()


def cache_tokens(decoder: Decoder, config: EngineConfig) -> int:
    """What was asked for, if it fits; else, on a GPU, what its share of the memory leaves beside weights and work."""
    if not decoder.embed.weight.is_cuda:
        return config.cache_tokens or _ON_A_CPU
    free, total = torch.cuda.mem_get_info()
    ours = torch.cuda.memory_reserved()  # the weights; what others hold is not in our share, but not free either
    budget = min(int(total * config.memory_share) - ours, free) - working_bytes(decoder, config)
    most = budget // bytes_per_token(decoder)
    wanted = config.cache_tokens or most
    if wanted > most or most < config.max_running:
        raise ConfigError(
            f"the GPU has room for a cache of {max(most, 0):,} tokens beside weights and work ({free / 2**30:.1f} of "
            f"{total / 2**30:.1f} GiB free, engine.memory_share={config.memory_share:g}); "
            + (f"engine.cache_tokens={wanted:,} is too many" if wanted > most else "choose a smaller model")
        )
    return wanted


def working_bytes(decoder: Decoder, config: EngineConfig) -> int:
    """Of a forward pass: the widest activations of a step, and the logits of all rows, twice."""
    shape, size = decoder.shape, decoder.embed.weight.element_size()
    width = 3 * shape.ffn + 4 * shape.hidden + 2 * (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    return config.step_tokens * width * size + 2 * config.max_running * shape.vocab_size * 4 + _SPARE
