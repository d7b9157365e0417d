"""What an engine needs of a GPU's memory, and how many tokens its cache may hold, before anything is allocated."""

from typing import TYPE_CHECKING

from freerun.core import ConfigError
from freerun.engines.config import ResolvedEngineConfig
from freerun.models.shape import Shape

if TYPE_CHECKING:
    from freerun.models.decoder import Decoder

_GUESSED = 16
"""Most tokens of an answer in a burst with guesses: `guess_bursts.py`."""


def bytes_per_token(shape: Shape, size: int) -> int:
    """What a token takes in the cache: a key and a value in every layer, in numbers of `size` bytes."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * size


def reach(burst: int) -> int:
    """Tokens that a sequence may be given before the host looks: a burst's, or those of one with guesses."""
    return max(burst, _GUESSED) if burst > 1 else burst


def cache_for(sequence_tokens: int, block_tokens: int, burst: int) -> int:
    """Tokens of cache without which a prompt and its answer, of so many tokens together, cannot run even alone: whole
    blocks, up to a burst beyond the end; and one block more, for the copy of the prompt's last one."""
    return (-(-(sequence_tokens + reach(burst)) // block_tokens) + 1) * block_tokens


def longest_in(cache_tokens: int, block_tokens: int, burst: int) -> int:
    """The longest prompt and answer together that `cache_for` says fit."""
    return max((cache_tokens // block_tokens - 1) * block_tokens - reach(burst), 0)


def working_bytes(shape: Shape, size: int, config: ResolvedEngineConfig, version_bytes: int) -> int:
    """Beside weights and cache: the next version, of so many bytes, while it is fetched, where that takes a copy; the
    widest activations of a step; and the logits of all rows, twice."""
    width = 3 * shape.token_ffn + 4 * shape.hidden + 2 * (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    if shape.experts:
        width += 3 * shape.experts.per_token * shape.hidden  # what goes into its experts, and comes out in float32
    logits = 2 * config.max_running * shape.vocab_size * 4
    fetched = 0 if config.fetched_in_place else version_bytes
    return fetched + config.step_tokens * width * size + logits + config.spare_bytes


def cache_tokens(decoder: "Decoder", config: ResolvedEngineConfig, version_bytes: int | None = None) -> int:
    """What was asked for, if it fits; else, on a GPU, what its share of the memory leaves beside weights and work. Only
    now can that be known: others may have taken memory since the run was planned. `version_bytes`: of the next version,
    where that is less than all weights."""
    if config.device == "cpu":
        assert config.cache_tokens is not None
        return config.cache_tokens
    from torch import cuda

    shape, size = decoder.shape, decoder.embed.weight.element_size()
    version_bytes = shape.num_parameters * size if version_bytes is None else version_bytes
    free, total = cuda.mem_get_info()
    ours = cuda.memory_reserved()  # the weights; what others hold is not in our share, but not free either
    budget = min(int(total * config.memory_share) - ours, free) - working_bytes(shape, size, config, version_bytes)
    most = budget // bytes_per_token(shape, size)
    wanted = config.cache_tokens or most
    if wanted > most or most < config.max_running:
        raise ConfigError(
            f"the GPU has room for a cache of {max(most, 0):,} tokens beside weights and work ({free / 2**30:.1f} of "
            f"{total / 2**30:.1f} GiB free, engine.memory_share={config.memory_share:.2g}); "
            + (f"engine.cache_tokens={wanted:,} is too many" if wanted > most else "choose a smaller model")
        )
    return wanted
