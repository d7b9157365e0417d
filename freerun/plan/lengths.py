"""Whether every prompt with its answer fits the model and the engine's cache."""

from collections.abc import Sequence
from dataclasses import dataclass

from freerun.config.tree import RunConfig
from freerun.core import ConfigError, Task
from freerun.engines.config import ResolvedEngineConfig
from freerun.engines.embedded.memory import cache_for
from freerun.models.shape import Shape


@dataclass(frozen=True)
class Lengths:
    """The most tokens that a prompt, an answer, and the two together have in a run."""

    prompt: int
    answer: int

    @property
    def sequence(self) -> int:
        return self.prompt + self.answer


LONGEST_CONTEXT = 16_384
"""How long an agent's conversation may be, unless told: most do not reach it, and training on it needs memory."""


def context_tokens(config: RunConfig, shape: Shape) -> int:
    """The most tokens of an agent's conversation."""
    if config.rollout.context_tokens is not None:
        return config.rollout.context_tokens
    cache = config.engine.cache_tokens or 65_536
    return min(LONGEST_CONTEXT, shape.max_positions, cache - 128)


def lengths_of(config: RunConfig, tasks: Sequence[Task], shape: Shape) -> Lengths:
    """Prompts are known once tasks are loaded; answers are as long as they may get. What an agent asks is its own: all
    of its conversation counts as answer."""
    if config.rollout.is_agent:
        return Lengths(0, context_tokens(config, shape))
    longest = max((len(task.prompt_tokens) for task in tasks), default=config.data.max_prompt_tokens)
    return Lengths(longest, config.rollout.max_new_tokens)


def check_lengths(lengths: Lengths, shape: Shape, engine: ResolvedEngineConfig) -> None:
    if not lengths.prompt and lengths.answer > shape.max_positions:
        raise ConfigError(
            f"rollout.context_tokens is {lengths.answer}, and the model has {shape.max_positions} positions: lower it"
        )
    if lengths.sequence > shape.max_positions:
        raise ConfigError(
            f"the longest prompt has {lengths.prompt} tokens, and with rollout.max_new_tokens={lengths.answer} that "
            f"exceeds the model's {shape.max_positions} positions; lower rollout.max_new_tokens"
        )
    needed = cache_for(lengths.sequence, engine.block_tokens, engine.burst)
    if engine.cache_tokens and needed > engine.cache_tokens:
        raise ConfigError(
            f"engine.cache_tokens is {engine.cache_tokens}, too few for the longest prompt and answer: raise it to "
            f"{needed}, or lower rollout.max_new_tokens"
        )
